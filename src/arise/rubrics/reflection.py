"""The reflection model G_ref: new pairs from a window's evidence, new skill texts (Eq. 4, 8)."""

from __future__ import annotations

from arise.errors import JudgeError, ReflectionError, one_line
from arise.llm.chat import ChatModel, ChatRequest, Purpose
from arise.rubrics.parsing import parse_proposals, parse_refined_skill
from arise.rubrics.payloads import GenerationPayload, RefinementPayload
from arise.rubrics.prompting import Prompts
from arise.rubrics.proposals import EvidenceRef, PairProposal


class Reflection:
    """Asks the reflection model.

    Args:
        model: Answers the requests.
        prompts: The prompt files.
    """

    def __init__(self, *, model: ChatModel, prompts: Prompts) -> None:
        self.model = model
        self._prompts = prompts

    @property
    def generation_prompt_hash(self) -> str:
        """Hash of the generation prompt, recorded with the pairs it gave."""
        return self._prompts.sha256(Purpose.GENERATION)

    async def generate(self, payload: GenerationPayload) -> tuple[PairProposal, ...]:
        """Propose new pairs (Eq. 4), as the model wrote them; the pool decides which it takes.

        Returns:
            The proposals in the order returned; none if the model saw no need.

        Raises:
            ReflectionError: No answer, or one without the requested form.
        """
        text = await self._ask(self._prompts.generation(payload))
        references = {
            record.number: EvidenceRef(
                task_id=record.task_id, iteration=record.iteration, rollout=record.rollout
            )
            for record in payload.records
        }
        proposals, is_answer = parse_proposals(text, records=references)
        if not is_answer:
            raise ReflectionError(f"no pairs in the answer: {text[:200]!r}")
        return proposals

    async def refine(self, payload: RefinementPayload) -> str:
        """Write a new text for a skill whose guidance did not help (Eq. 8).

        Raises:
            ReflectionError: No answer, no text in it, or the old text again.
        """
        text = await self._ask(self._prompts.refinement(payload))
        skill = parse_refined_skill(text, old_text=payload.skill)
        if skill is None:
            raise ReflectionError(f"no new skill text in the answer: {text[:200]!r}")
        return skill

    async def _ask(self, request: ChatRequest) -> str:
        try:
            return (await self.model.complete(request)).text
        except JudgeError as error:
            raise ReflectionError(one_line(error)) from error
