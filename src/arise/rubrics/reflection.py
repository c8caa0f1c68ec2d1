"""The reflection model G_ref: new pairs from a window's evidence, new skill texts (Eq. 4, 8)."""

from __future__ import annotations

import time

from arise.errors import JudgeError, ReflectionError, one_line
from arise.llm.chat import ChatModel, ChatRequest, Purpose
from arise.llm.usage import TokenPrices, Usage
from arise.rubrics.parsing import parse_proposals, parse_refined_skill
from arise.rubrics.payloads import GenerationPayload, RefinementPayload
from arise.rubrics.prompting import Prompts
from arise.rubrics.proposals import EvidenceRef, PairProposal


class Reflection:
    """Asks the reflection model.

    Args:
        model: Answers the requests.
        prompts: The prompt files.
        prices: For the cost; `None` if they are not known.
    """

    def __init__(
        self, *, model: ChatModel, prompts: Prompts, prices: TokenPrices | None = None
    ) -> None:
        self.model = model
        self._prompts = prompts
        self._prices = prices
        self._usage = Usage(prices=prices)

    def origin(self, purpose: Purpose) -> dict[str, str]:
        """Hash of a prompt and name of the model: recorded with whatever they gave."""
        return {"prompt": self._prompts.sha256(purpose), "model": self.model.name}

    def pop_metrics(self) -> dict[str, float]:
        """The scalars `reflection/*` since the last call, by TensorBoard name."""
        usage, self._usage = self._usage, Usage(prices=self._prices)
        return usage.scalars("reflection")

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
        started = time.perf_counter()
        try:
            response = await self.model.complete(request)
        except JudgeError as error:
            self._usage.failed(time.perf_counter() - started)
            raise ReflectionError(one_line(error)) from error
        self._usage.answered(response, time.perf_counter() - started)
        return response.text
