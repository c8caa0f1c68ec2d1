"""The policy's side of one episode: the growing token history and the recorded turns."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arise.agents.rendering import ChatRenderer
from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.types import FinishReason, HarnessReport, InjectedSkill, Turn


def request_seed(*parts: int | str) -> int:
    """A 63-bit seed from the run's seed, policy version, task id, rollout and turn."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def with_skills(system_prompt: str, skills: Sequence[InjectedSkill]) -> str:
    """The system prompt with all active skills below it, in pair-id order, never cut."""
    return system_prompt + _skills_block(skills)


def without_skills(
    messages: Sequence[Mapping[str, Any]], skills: Sequence[InjectedSkill]
) -> list[dict[str, Any]]:
    """The messages without what `with_skills` added."""
    block = _skills_block(skills)
    return [
        {**message, "content": message["content"].replace(block, "", 1)}
        if block and isinstance(message.get("content"), str)
        else dict(message)
        for message in messages
    ]


def _skills_block(skills: Sequence[InjectedSkill]) -> str:
    if not skills:
        return ""
    lines = [f"- {skill.text}" for skill in sorted(skills, key=lambda skill: skill.pair_id)]
    return "\n" + "\n".join(["Skills:", *lines])


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
        strips_skills: Whether rows are trained on prompts without them.
        is_training: Whether the sampling is fixed: in evaluation an agent program may ask for
            its own.

    Attributes:
        turns: Model calls so far; those of one token row stand together.
        renderer: As given.
        context_tokens: As given.
        sampling: As given.
        row_reasons: How often a row was begun after the first one, by reason.
        num_tool_calls: Tool calls that the policy tried; counted by the harness.
        num_tool_errors: Those that could not be run; counted by the harness.
        num_refused_calls: Model calls refused because a budget was used up.
        exit_code: Exit code of an external agent program.
        log: What that program printed.
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
        strips_skills: bool = False,
        is_training: bool = True,
    ) -> None:
        self.skills = skills
        self.turns: list[Turn] = []
        self.renderer = renderer
        self.context_tokens = context_tokens
        self.is_training = is_training
        self.row_reasons: Counter[str] = Counter()
        self.num_tool_calls = 0
        self.num_tool_errors = 0
        self.num_refused_calls = 0
        self.exit_code: int | None = None
        self.log = ""
        self._strips_skills = strips_skills and bool(skills)
        self._plain: tuple[int, ...] | None = None
        self._num_first = 0
        self._session = session
        self._generate = generate
        self.sampling = sampling
        self._seed_parts = seed_parts
        self._num_calls = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._history: list[int] = []
        self._added: tuple[int, ...] = ()
        self._starts_row = True

    @property
    def room(self) -> int:
        """Tokens that still fit into the context."""
        return self.context_tokens - len(self._history)

    @property
    def report(self) -> HarnessReport:
        """What was counted so far."""
        return HarnessReport(
            num_tool_calls=self.num_tool_calls,
            num_tool_errors=self.num_tool_errors,
            row_reasons=dict(self.row_reasons),
            num_refused_calls=self.num_refused_calls,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            exit_code=self.exit_code,
            log=self.log,
        )

    def begin(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        reason: str = "step",
    ) -> None:
        """Start a conversation with system and user messages; a further one starts a new row.

        Args:
            messages: The conversation up to the first reply.
            tools: Definitions that the chat template writes into the prompt.
            reason: Why a further conversation begins.

        Raises:
            ConfigError: With skills in it, the prompt leaves no room for a reply: skills are never
                cut.
        """
        if self.turns:
            self.row_reasons[reason] += 1
        self._added = self.renderer.start(messages, tools=tools)
        self._num_first = len(self._added)
        if self._strips_skills:
            plain = without_skills(messages, self.skills)
            self._plain = self.renderer.start(plain, tools=tools)
        self._starts_row = True
        self._history = list(self._added)
        self.require_room_for_skills(self._added)

    def require_room_for_skills(self, prompt_token_ids: Sequence[int]) -> None:
        """Refuse a first prompt whose skills leave no room for a reply.

        Raises:
            ConfigError: It does; skills are never cut.
        """
        if self.skills and len(prompt_token_ids) >= self.context_tokens:
            raise ConfigError(
                f"rollout.context_tokens = {self.context_tokens} leaves no room for a reply: the "
                f"first prompt, with {len(self.skills)} active skills, has "
                f"{len(prompt_token_ids)} tokens; raise rollout.context_tokens or lower "
                "rubrics.max_pairs"
            )

    def snapshot(self) -> tuple[int, ...]:
        """The token history, to `return_to` later."""
        return tuple(self._history)

    def return_to(self, snapshot: tuple[int, ...], observation: str, *, reason: str) -> None:
        """Go on from an earlier history in a new row, with `observation` appended."""
        self.row_reasons[reason] += 1
        last = snapshot[-1] if snapshot else None
        self._added = (*snapshot, *self.renderer.extend(observation, last_token_id=last))
        self._history = list(self._added)
        self._starts_row = True

    async def complete(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: SamplingParams | None = None,
    ) -> Completion:
        """One checked model call, recorded by the caller.

        Args:
            prompt_token_ids: int[P], the whole prompt.
            max_tokens: Most tokens to generate, at least 1.
            sampling: Instead of the base parameters, in evaluation.

        Raises:
            InferenceError: The engine failed or its answer does not align.
        """
        number, self._num_calls = self._num_calls, self._num_calls + 1
        params = replace(
            sampling or self.sampling,
            max_tokens=max_tokens,
            stop_token_ids=self.renderer.stop_token_ids,
            seed=request_seed(*self._seed_parts, number),
        )
        completion = await self._generate(
            GenerationRequest(
                session=self._session, prompt_token_ids=tuple(prompt_token_ids), sampling=params
            )
        )
        if not completion.token_ids or len(completion.token_ids) > max_tokens:
            raise InferenceError(
                f"asked for 1 to {max_tokens} tokens, got {len(completion.token_ids)}"
            )
        self.count_tokens(len(prompt_token_ids), len(completion.token_ids))
        return completion

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
        room = self.room
        if room <= 0:
            return Reply(text="", limit=FinishReason.CONTEXT_LIMIT)
        completion = await self.complete(self._history, max_tokens=min(max_tokens, room))
        self._history += completion.token_ids
        turn = Turn(
            prompt_token_ids=self._added,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_versions=completion.policy_versions,
            text=self.renderer.decode(completion.token_ids),
            finish_reason=completion.finish_reason,
            starts_row=self._starts_row,
            trained_prompt_token_ids=self._trained_prompt(),
        )
        self.turns.append(turn)
        self._starts_row = False
        if completion.finish_reason == "stop":
            return Reply(text=turn.text)
        is_context = room < max_tokens
        limit = FinishReason.CONTEXT_LIMIT if is_context else FinishReason.OUTPUT_LIMIT
        return Reply(text=turn.text, limit=limit)

    def _trained_prompt(self) -> tuple[int, ...] | None:
        """The prompt without skills at the start of a row; all of a row's turns share it."""
        if self._plain is None or not self._starts_row:
            return None
        return (*self._plain, *self._added[self._num_first :])

    def count_tokens(self, num_read: int, num_generated: int) -> None:
        """Count what one model call read and generated."""
        self._prompt_tokens += num_read
        self._completion_tokens += num_generated

    def amend(self, **changes: Any) -> None:
        """Change fields of the last turn that are no tokens."""
        self.turns[-1] = replace(self.turns[-1], **changes)

    def act(self, action: str) -> None:
        """Record the command of the last reply before it runs: it may outlive the episode."""
        self.turns[-1] = replace(self.turns[-1], action=action)

    def observe(self, observation: str | Sequence[str], *, exit_code: int | None = None) -> None:
        """Record what the environment answered to the last reply and append it to the history.

        Args:
            observation: One observation, or the results of several tool calls in their order.
            exit_code: Of the command, if there was one.
        """
        last = self.turns[-1]
        shown = observation if isinstance(observation, str) else "\n".join(observation)
        self.turns[-1] = replace(last, observation=shown, exit_code=exit_code)
        self._added = self.renderer.extend(observation, last_token_id=last.token_ids[-1])
        self._history += self._added
