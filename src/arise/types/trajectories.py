"""What the policy did on tasks, token by token, and what was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arise.types.tasks import Task


class FinishReason(StrEnum):
    """Why an episode ended. All of them are graded, judged and trained."""

    SUBMITTED = "submitted"
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"
    OUTPUT_LIMIT = "output_limit"
    TIMEOUT = "timeout"


class FailureKind(StrEnum):
    """Which boundary lost a rollout. Never a reward of 0."""

    INFERENCE = "inference"
    SANDBOX = "sandbox"
    VERIFIER = "verifier"
    HARNESS = "harness"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and what came back.

    `prompt_token_ids` holds only what was *added* to the row since the previous turn's generated
    tokens (the whole prompt if `starts_row`), so that a long trajectory costs memory once:
    concatenating prompt and generated tokens from a row's start gives exactly what the engine saw.

    Attributes:
        prompt_token_ids: int[P], added prompt tokens; never trained.
        token_ids: int[N], generated tokens, exactly as sampled.
        logprobs: float[N], log π_beh of each generated token under the distribution sampled from.
        policy_versions: int[N], policy version that sampled each token.
        text: The generated tokens decoded, for people and the judge.
        action: Command that was executed; `None` if none was.
        observation: What the environment answered; empty after the last turn.
        exit_code: Exit code of the command; `None` if none ran or it timed out.
        finish_reason: `"stop"` (an end token was sampled) or `"length"`.
        starts_row: Whether the prompt is not a continuation of the previous turn.
        trained_prompt_token_ids: int[P'], what a row is trained on in place of the prompt: the same
            without what the prompt showed; `None` for the prompt itself.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    text: str
    action: str | None = None
    observation: str = ""
    exit_code: int | None = None
    finish_reason: str = "stop"
    starts_row: bool = False
    trained_prompt_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A token sequence as one forward pass sees it; all arrays have length T.

    Attributes:
        token_ids: int[T].
        generated_mask: bool[T], true where the model generated the token (m of Eq. 19).
        logprobs: float[T], behaviour log-probability where generated, else 0.
        policy_versions: int[T], version where generated, else -1.
    """

    token_ids: tuple[int, ...]
    generated_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedSkill:
    """A skill as it stood in the system prompt: pair, text revision and text."""

    pair_id: int
    revision: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessReport:
    """What happened in an episode besides its turns.

    Attributes:
        num_tool_calls: Tool calls that the policy tried.
        num_tool_errors: Those that could not be run: unparsable, unknown or with wrong arguments.
        row_reasons: How often a token row was begun after the first one, by reason.
        num_refused_calls: Model calls refused because a budget was used up.
        prompt_tokens: Tokens that the model read, over all calls.
        completion_tokens: Tokens that the model generated, over all calls.
        exit_code: Exit code of an external agent program; `None` if there was none or it was
            killed.
        log: What that program printed; its head and tail if it was long.
    """

    num_tool_calls: int = 0
    num_tool_errors: int = 0
    row_reasons: Mapping[str, int] = field(default_factory=dict)
    num_refused_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    exit_code: int | None = None
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One graded rollout τ_j.

    Attributes:
        task_id: Task of the group.
        rollout: Slot j in the group, 0 to G-1.
        turns: Model calls in order.
        finish_reason: Why the episode ended.
        task_reward: Raw verifier reward R_task.
        skills: Skills that were in the system prompt.
        instruction: The task as the agent saw it.
        durations_s: Seconds by phase (generate, exec, verify); not part of any equality.
        harness: What the harness counted; not part of any equality.
    """

    task_id: str
    rollout: int
    turns: tuple[Turn, ...]
    finish_reason: FinishReason
    task_reward: float
    skills: tuple[InjectedSkill, ...] = ()
    instruction: str = ""
    durations_s: Mapping[str, float] = field(default_factory=dict, compare=False)
    harness: HarnessReport = field(default_factory=HarnessReport, compare=False)

    @property
    def is_success(self) -> bool:
        """Whether the raw reward reaches 1."""
        return self.task_reward >= 1.0

    @property
    def num_generated_tokens(self) -> int:
        """ℓ_j of Eq. 17: generated tokens over all rows, thinking included."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The token sequences to train on: one per unbroken history."""
        starts = [i for i, turn in enumerate(self.turns) if i == 0 or turn.starts_row]
        ends = [*starts[1:], len(self.turns)][: len(starts)]
        return tuple(_row(self.turns[start:end]) for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFailure:
    """A rollout lost to infrastructure: excluded from its group, counted by kind."""

    task_id: str
    rollout: int
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The G rollouts of one task, in slots: `slots[j]` is rollout j or its failure."""

    task: Task
    slots: tuple[Trajectory | RolloutFailure, ...]

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The survivors, in slot order."""
        return tuple(slot for slot in self.slots if isinstance(slot, Trajectory))

    @property
    def failures(self) -> tuple[RolloutFailure, ...]:
        """The lost rollouts, in slot order."""
        return tuple(slot for slot in self.slots if isinstance(slot, RolloutFailure))

    @property
    def is_complete(self) -> bool:
        """Whether no rollout was lost."""
        return not self.failures


def _row(turns: tuple[Turn, ...]) -> TokenRow:
    token_ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for turn in turns:
        prompt = turn.prompt_token_ids
        if turn.trained_prompt_token_ids is not None:
            prompt = turn.trained_prompt_token_ids
        num_prompt, num_generated = len(prompt), len(turn.token_ids)
        token_ids += (*prompt, *turn.token_ids)
        mask += [False] * num_prompt + [True] * num_generated
        logprobs += [0.0] * num_prompt + list(turn.logprobs)
        versions += [-1] * num_prompt + list(turn.policy_versions)
    return TokenRow(
        token_ids=tuple(token_ids),
        generated_mask=tuple(mask),
        logprobs=tuple(logprobs),
        policy_versions=tuple(versions),
    )
