"""The policy's side of one episode: the growing token history and the recorded turns."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from arise.agents.rendering import ChatRenderer
from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.types import FinishReason, InjectedSkill, Turn


def request_seed(*parts: int | str) -> int:
    """A 63-bit seed from the run's seed, policy version, task id, rollout and turn."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def with_skills(system_prompt: str, skills: Sequence[InjectedSkill]) -> str:
    """The system prompt with all active skills below it, in pair-id order, never cut."""
    if not skills:
        return system_prompt
    lines = [f"- {skill.text}" for skill in sorted(skills, key=lambda skill: skill.pair_id)]
    return "\n".join([system_prompt, "Skills:", *lines])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One generated reply: its text, and the limit it ran into if it is incomplete."""

    text: str
    limit: FinishReason | None = None


class PolicySession:
    """Calls the policy for one episode and records what it saw and sampled.

    Args:
        session: (task index, rollout), the engine's cache key.
        renderer: Token-exact chat rendering.
        generate: Answers one request (`GenerationGate.generate`).
        sampling: Base sampling parameters; seed, stop tokens and length are set per call.
        seed_parts: Everything but the turn that a request's seed depends on.
        context_tokens: Most tokens of prompt and replies together.
        skills: Skills in the system prompt of this episode.
    """

    def __init__(
        self,
        *,
        session: tuple[int, int],
        renderer: ChatRenderer,
        generate: Callable[[GenerationRequest], Awaitable[Completion]],
        sampling: SamplingParams,
        seed_parts: tuple[int | str, ...],
        context_tokens: int,
        skills: tuple[InjectedSkill, ...] = (),
    ) -> None:
        self.skills = skills
        self.turns: list[Turn] = []
        self._session = session
        self._renderer = renderer
        self._generate = generate
        self._sampling = sampling
        self._seed_parts = seed_parts
        self._context_tokens = context_tokens
        self._history: list[int] = []
        self._added: tuple[int, ...] = ()
        self._starts_row = True

    def begin(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Start a conversation with system and user messages; a further one starts a new row.

        Raises:
            ConfigError: With skills in it, the prompt leaves no room for a reply: skills are never
                cut.
        """
        self._added = self._renderer.start(messages)
        self._starts_row = True
        self._history = list(self._added)
        if self.skills and len(self._added) >= self._context_tokens:
            raise ConfigError(
                f"rollout.context_tokens = {self._context_tokens} leaves no room for a reply: the "
                f"first prompt, with {len(self.skills)} active skills, has {len(self._added)} "
                "tokens; raise rollout.context_tokens or lower rubrics.max_pairs"
            )

    async def reply(self, *, max_tokens: int) -> Reply:
        """Generate the next reply and record it as a turn.

        Args:
            max_tokens: Output limit of this reply; the room left in the context caps it.

        Returns:
            The reply. With `limit` set it is cut off and must not be acted on. If the context has
            no room at all, no turn is recorded.

        Raises:
            InferenceError: The engine failed or its answer does not align.
        """
        room = self._context_tokens - len(self._history)
        if room <= 0:
            return Reply(text="", limit=FinishReason.CONTEXT_LIMIT)
        sampling = replace(
            self._sampling,
            max_tokens=min(max_tokens, room),
            stop_token_ids=self._renderer.stop_token_ids,
            seed=request_seed(*self._seed_parts, len(self.turns)),
        )
        completion = await self._generate(
            GenerationRequest(
                session=self._session,
                prompt_token_ids=tuple(self._history),
                sampling=sampling,
            )
        )
        if not completion.token_ids or len(completion.token_ids) > sampling.max_tokens:
            raise InferenceError(
                f"asked for 1 to {sampling.max_tokens} tokens, got {len(completion.token_ids)}"
            )
        self._history += completion.token_ids
        turn = Turn(
            prompt_token_ids=self._added,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_versions=completion.policy_versions,
            text=self._renderer.decode(completion.token_ids),
            finish_reason=completion.finish_reason,
            starts_row=self._starts_row,
        )
        self.turns.append(turn)
        self._starts_row = False
        if completion.finish_reason == "stop":
            return Reply(text=turn.text)
        is_context = room < max_tokens
        limit = FinishReason.CONTEXT_LIMIT if is_context else FinishReason.OUTPUT_LIMIT
        return Reply(text=turn.text, limit=limit)

    def act(self, action: str) -> None:
        """Record the command of the last reply before it runs: it may outlive the episode."""
        self.turns[-1] = replace(self.turns[-1], action=action)

    def observe(self, observation: str, *, exit_code: int | None = None) -> None:
        """Record what the environment answered to the last reply and append it to the history."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, observation=observation, exit_code=exit_code)
        self._added = self._renderer.extend(observation, last_token_id=last.token_ids[-1])
        self._history += self._added
