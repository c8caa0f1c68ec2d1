"""The nouns of the product: what flows from sampling to the optimizer step.

Only the standard library is imported here, and every other module may import this one. Types are
frozen, except `Iteration`, which is filled stage by stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Capability(StrEnum):
    """The five behavioural capabilities c of the paper's Table 3."""

    UNDERSTANDING = "understanding"
    EXECUTION = "execution"
    VERIFICATION = "verification"
    DEBUGGING = "debugging"
    EFFICIENCY = "efficiency"


class Outcome(StrEnum):
    """A judge's valid answer y_ij for one rubric. A missing answer is *invalid*, never `FAIL`."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not_applicable"


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
class Healthcheck:
    """A command that must succeed in the sandbox before the agent starts.

    Attributes:
        command: Shell command.
        interval_s: Pause between attempts, in seconds.
        timeout_s: Limit on one attempt, in seconds.
        start_period_s: Time in which failures do not count, in seconds.
        start_interval_s: Pause between attempts in that time, in seconds.
        retries: Attempts after that time.
    """

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What a task asks of its sandbox. `None` means no limit or not given.

    Attributes:
        context: Folder with the Dockerfile and its files (`environment/` of a Harbor task).
        docker_image: Ready image to use instead of building.
        workdir: Where commands start; `None` leaves it to the Dockerfile.
        env: Environment variables of the agent's shell.
        cpus: Number of CPUs.
        memory_mb: Memory limit in MiB.
        storage_mb: Disk limit in MiB.
        gpus: Number of GPUs.
        network: Whether the agent may reach the network; `None` if the task does not say.
        tests_network: The same of the tests; `None` if it is as the agent's.
        build_timeout_s: Limit on building the image, in seconds.
        dockerfile: Name of the Dockerfile in `context`.
        exclude: Entries of `context` that are no part of it (tests and solution beside it).
        user: User of the agent's commands; `None` leaves it to the image.
        skills: Folder of the benchmark's own skills, put at `/skills` for the agent to read.
        skills_dir: Where the image has skills of its own; `/skills` leads there.
        healthcheck: What must succeed before the agent starts; `None` if nothing.
        unsupported: Why no kind of sandbox here can run the task; empty if that is not known.
        mounts: (path on this host, absolute path in the sandbox) of folders that the sandbox sees
            read-only; an agent program and the socket of its model come that way.
    """

    context: Path | None = None
    docker_image: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    network: bool | None = None
    tests_network: bool | None = None
    build_timeout_s: float = 600.0
    dockerfile: str = "Dockerfile"
    exclude: tuple[str, ...] = ()
    user: str | None = None
    skills: Path | None = None
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    unsupported: str = ""
    mounts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a task in several steps; all of them share one sandbox.

    Attributes:
        name: Its folder below `steps/`.
        instruction: What the agent is asked to do in this step.
        tests: Folders whose files are put at `/tests`, later ones over earlier ones.
        workdir: Folder that is put into the working directory before the step.
        solution: Folder of the step's reference solution.
        min_reward: The episode ends after this step if its reward is lower.
        agent_timeout_s: Wall-clock limit of the agent in this step; `None` as the task's.
        verifier_timeout_s: Wall-clock limit of grading this step.
        verifier_env: Environment variables of the step's tests.
        healthcheck: What must succeed before the agent starts this step; `None` if nothing.
    """

    name: str
    instruction: str
    tests: tuple[Path, ...]
    workdir: Path | None = None
    solution: Path | None = None
    min_reward: float | None = None
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One executable task: an instruction, a place to work in, and tests that grade the result.

    Attributes:
        id: Unique in the corpus and stable between runs; evidence is kept by it.
        instruction: What the agent is asked to do.
        path: Folder the task was read from.
        tests: Folder that is uploaded to `/tests` after the agent has finished.
        solution: Folder of the reference solution; never shown to agent, judge or reflection.
        environment: What the sandbox must offer.
        tags: Task types d (several are allowed).
        domain: Reporting group.
        agent_timeout_s: Wall-clock limit of an episode; `None` leaves it to the harness.
        verifier_timeout_s: Wall-clock limit of grading.
        verifier_env: Environment variables of the tests.
        verifier_user: User of the tests; `None` leaves it to the image.
        is_graded_apart: Whether the task asks to be graded in a second container.
        artifacts: Absolute paths, besides the working directory, that a second container gets.
        extra_tests: Folders put at `/tests` besides `tests`, under its files.
        solution_env: Environment variables of the reference solution.
        steps: The steps of a multi-step task, in order; empty for an ordinary one. Then
            `instruction` is all of them and `tests` are those of the last one.
        step_reward: How a multi-step task's reward follows from its steps': `"mean"` over the
            steps that were graded, or `"final"`, the last one of them.
        prior: Messages of an earlier conversation that the agent goes on from.
    """

    id: str
    instruction: str
    path: Path
    tests: Path
    solution: Path | None = None
    environment: EnvironmentSpec = field(default_factory=EnvironmentSpec)
    tags: tuple[str, ...] = ()
    domain: str | None = None
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    verifier_user: str | None = None
    is_graded_apart: bool = False
    artifacts: tuple[str, ...] = ()
    extra_tests: tuple[Path, ...] = ()
    solution_env: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    step_reward: str = "mean"
    prior: tuple[Mapping[str, str], ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's valid answer for one rubric on one trajectory."""

    pair_id: int
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One observable behaviour the judge found, with the signal that shows it.

    Attributes:
        kind: `"gap"` (a weakness) or `"strategy"` (something useful).
        behaviour: What the agent did or failed to do.
        signal: Where the trace shows it.
        covered_by: Pair that already covers the behaviour; `None` if no rubric does.
    """

    kind: str
    behaviour: str
    signal: str = ""
    covered_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What judging one trajectory gave.

    Attributes:
        judged_pair_ids: The pool when judging of the group started. A pair in here without a
            verdict is *invalid*; a pair not in here is *unjudged*.
        verdicts: Valid verdicts, in pair-id order.
        diagnostics: Observed gaps and strategies.
        error: Why the answer is missing or partial; empty if all is well.
        prompt_hash: Hash of the prompt file by which the trajectory was reviewed.
        model: Name of the judge model.
        shortening: What of the trace was shortened for the judge; empty if nothing was.
    """

    judged_pair_ids: tuple[int, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    error: str = ""
    prompt_hash: str = ""
    model: str = ""
    shortening: str = ""

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """Outcome by pair id."""
        return {verdict.pair_id: verdict.outcome for verdict in self.verdicts}

    @property
    def num_invalid(self) -> int:
        """Judged pairs without a valid verdict."""
        return len(self.judged_pair_ids) - len(self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """A criterion of the OnlineRubrics baseline: it lives for one task in one iteration.

    Attributes:
        id: Number within its task and iteration, from 1.
        text: What a trajectory shows that meets it.
        weight: Its share of the reward, not 0; below 0 for a mistake that costs.
        quote: Where it was seen, word for word, in one of the trajectories compared.
    """

    id: int
    text: str
    weight: float
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTask:
    """A task and why the sampler chose it.

    Attributes:
        task: The task.
        reason: `"discovery"`, `"adaptive"`, `"fallback"`, `"uniform"` or `"vade"`.
        tag: Task type of the chosen pair, if adaptive.
        capability: Capability of the chosen pair, if adaptive.
        numbers: What the choice rested on, by name; see the sampler.
    """

    task: Task
    reason: str = "uniform"
    tag: str | None = None
    capability: Capability | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Iteration:
    """One sampled batch on its way to one optimizer step. Lists align with `samples` by index.

    Attributes:
        index: k; also the policy version that generates. Filled by the data module.
        samples: The B tasks and why they were drawn. Filled by the data module.
        skills: Skills injected into every rollout. Filled at admission, by the data module.
        groups: One group per sample. Filled by the rollout callback.
        reviews: `reviews[i][j]` belongs to `groups[i].slots[j]`; `None` for a lost rollout or
            where no judge runs. Filled by the rollout callback.
        criteria: `criteria[i]` are those elicited for `samples[i]`; OnlineRubrics only.
        shaped_rewards: `[i][j]` after Eq. 17, or the score of a baseline that has its own reward;
            `None` for a lost rollout, or one without a score.
        advantages: `[i][j]` after Eq. 15 and 16; `None` for a lost rollout.
        num_generated_tokens: Σm of Eq. 19 over all ranks.
        micro_batches: This rank's packed rows (`arise.algorithms.packing.PackedBatch`).
        log_ratios: float32[N] tensors of log ω of a row's generated tokens before the step, by
            the row's number among the training rows. Filled on rank 0 by the learning step.
        metrics: Scalars by TensorBoard name.
        durations_s: Seconds by phase.
        started_at: `time.perf_counter()` at the draw. Filled by the data module.
    """

    index: int
    samples: list[SampledTask] = field(default_factory=list)
    skills: tuple[InjectedSkill, ...] = ()
    groups: list[TrajectoryGroup] = field(default_factory=list)
    reviews: list[list[Review | None]] = field(default_factory=list)
    criteria: list[tuple[Criterion, ...]] = field(default_factory=list)
    shaped_rewards: list[list[float | None]] = field(default_factory=list)
    advantages: list[list[float | None]] = field(default_factory=list)
    num_generated_tokens: int = 0
    micro_batches: list[Any] = field(default_factory=list)
    log_ratios: dict[int, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    durations_s: dict[str, float] = field(default_factory=dict)
    started_at: float = 0.0

    @property
    def tasks(self) -> list[Task]:
        """The sampled tasks, in draw order."""
        return [sample.task for sample in self.samples]
