"""The typed data behind each prompt: what travels as `ChatRequest.payload`.

One class per purpose. A rule-based model reads the payload instead of the prompt and answers in
the same text format as a language model. The answers expected (see `parsing`):

- `InitialAnalysisPayload` -> one line `{"diagnostics": [...]}`.
- `EvaluationPayload` -> per rubric one line `{"id": 3, "reason": "...", "verdict":
  "pass|fail|not_applicable"}`, then `{"diagnostics": [...]}` if `asks_diagnostics`.
- A diagnostic is `{"kind": "gap|strategy", "behaviour": "...", "signal": "...", "covered_by":
  3|null}`. `behaviour` names the behaviour in words that recur, so that the records of one window
  can be grouped by it; `signal` says where this trace shows it.
- `GenerationPayload` -> `{"pairs": [{"title", "capability", "applicability", "fail_condition",
  "pass_condition", "skill", "issue_records": [2, 5], "contrast_records": [1]}]}`.
- `RefinementPayload` -> `{"skill": "..."}`.
- `AnnotationPayload` -> defined by the annotation prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from arise.types import Diagnostic


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One turn of a trace.

    Attributes:
        text: What the model wrote, thinking and command included.
        command: What was executed; `None` if nothing was.
        observation: What the environment answered; empty after the last turn.
        exit_code: Exit code; `None` if nothing ran or it timed out.
    """

    text: str
    command: str | None = None
    observation: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryView:
    """A trajectory as the judge sees it.

    Attributes:
        task_id: The task.
        instruction: What the agent was asked to do.
        steps: The whole interaction, in order.
        finish_reason: Why the episode ended (a `FinishReason` value).
        is_success: The verifier's outcome: auxiliary context, never the ground of a verdict.
        note: What was shortened; empty if nothing was.
    """

    task_id: str
    instruction: str
    steps: tuple[TraceStep, ...]
    finish_reason: str
    is_success: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricView:
    """A pair as the judge and the generation see it; the skill is not part of it."""

    id: int
    title: str
    capability: str
    applicability: str
    fail_condition: str
    pass_condition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialAnalysisPayload:
    """One trajectory, while the pool is empty: diagnostics, no verdicts."""

    trajectory: TrajectoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPayload:
    """One trajectory and the rubrics to judge it by.

    Attributes:
        trajectory: What to judge.
        rubrics: Rubrics that need a verdict from this request.
        pool: The complete pool if diagnostics are asked for, to tell what is covered; else empty.
        asks_diagnostics: Whether this request answers with diagnostics too.
    """

    trajectory: TrajectoryView
    rubrics: tuple[RubricView, ...]
    pool: tuple[RubricView, ...]
    asks_diagnostics: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillUse:
    """An injected skill and what became of it.

    Attributes:
        pair_id: The pair.
        revision: Text revision that was injected.
        verdict: The rubric's verdict on the same trajectory: `"pass"`, `"fail"`,
            `"not_applicable"`, or `"invalid"` if there is none.
    """

    pair_id: int
    revision: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord:
    """One trajectory's diagnostics as the reflection sees them: no reward, no outcome label.

    Attributes:
        number: Names the record within this request; proposals refer to it.
        iteration: k.
        task_id: The task.
        rollout: Slot in the group.
        task_types: The task's tags.
        instruction: Beginning of the instruction.
        diagnostics: Gaps and strategies, each with the pair that covers it, if any.
        skills: Skills that were injected.
    """

    number: int
    iteration: int
    task_id: str
    rollout: int
    task_types: tuple[str, ...]
    instruction: str
    diagnostics: tuple[Diagnostic, ...]
    skills: tuple[SkillUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairStatus:
    """Pool metadata of one pair: skill state, revision and the window's counts of Eq. 2."""

    pair_id: int
    state: str
    revision: int
    num_passes: int
    num_applicable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMetadata:
    """Task and pool metadata of the update window.

    Attributes:
        step: k+1 of the update.
        num_trajectories: Trajectories of the window.
        num_tasks: Distinct tasks among them.
        task_types: Trajectories per tag, by tag.
        pairs: Status of every pair before the update, in id order.
    """

    step: int
    num_trajectories: int
    num_tasks: int
    task_types: tuple[tuple[str, int], ...]
    pairs: tuple[PairStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPayload:
    """What G_ref gets to propose new pairs (Eq. 4).

    Attributes:
        records: Drawn records, numbered from 1.
        pool: The pool before retirement: what need not be proposed again.
        max_pairs: Most pairs to propose.
        metadata: The window in numbers.
    """

    records: tuple[GenerationRecord, ...]
    pool: tuple[RubricView, ...]
    max_pairs: int
    metadata: WindowMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """A trajectory that failed the rubric although the skill's current text was injected.

    Attributes:
        record: Its diagnostics.
        reason: Why the judge failed it.
        is_success: The task's outcome.
    """

    record: GenerationRecord
    reason: str
    is_success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinementPayload:
    """What G_ref gets to revise one skill (Eq. 8).

    Attributes:
        rubric: The criterion, which stays.
        skill: The text that did not help.
        revision: Its revision.
        failures: Failure evidence, failed tasks first.
        context: The records drawn for generation at the same update.
        metadata: The window in numbers.
    """

    rubric: RubricView
    skill: str
    revision: int
    failures: tuple[FailureRecord, ...]
    context: tuple[GenerationRecord, ...]
    metadata: WindowMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTypeEntry:
    """One entry of the task-type registry."""

    name: str
    definition: str
    inclusion: str
    exclusion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationPayload:
    """What the offline annotator sees of a task: never tests, solutions or rollouts.

    Attributes:
        task_id: The task.
        instruction: Its instruction.
        skill_names: Names of the skills that the benchmark provides.
        artifact_paths: Paths of the files in the environment.
        registry: Task types to choose from; only the near candidates in a second pass.
        is_second_pass: Whether this is the focused second pass.
    """

    task_id: str
    instruction: str
    skill_names: tuple[str, ...]
    artifact_paths: tuple[str, ...]
    registry: tuple[TaskTypeEntry, ...]
    is_second_pass: bool = False
