"""Groups of rollouts on their way through the stream: admitted, running, finished."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from arise.agents.orchestrator import RolloutPlan
from arise.inference.base import SamplingParams
from arise.rubrics.pair import RubricSkillPair
from arise.types import (
    InjectedSkill,
    Review,
    RolloutFailure,
    SampledTask,
    Trajectory,
    TrajectoryGroup,
)

# Episodes of an evaluation have task indices from 0; engines know episodes by their index.
FIRST_INDEX = 1_000_000

# Why a group is given up.
RUNNING_TOO_OLD = "running_too_old"
FINISHED_TOO_OLD = "finished_too_old"
TASK_REMOVED = "task_removed"
OVER_BOUND = "over_bound"
DROP_REASONS = (RUNNING_TOO_OLD, FINISHED_TOO_OLD, TASK_REMOVED, OVER_BOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A group that is to be played.

    Attributes:
        serial: Number of the group in the run, from 0; unique.
        version: Policy version at the admission; part of every seed.
        sample: The task and why it was drawn.
        skills: Skills in every system prompt of the group.
        shown: What single rollouts are shown instead.
    """

    serial: int
    version: int
    sample: SampledTask
    skills: tuple[InjectedSkill, ...] = ()
    shown: Mapping[int, tuple[InjectedSkill, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group whose episodes are over and judged.

    Attributes:
        admission: How it was admitted.
        group: Its G slots.
        reviews: Aligned with the slots; `None` for a lost rollout or without a judge.
    """

    admission: Admission
    group: TrajectoryGroup
    reviews: tuple[Review | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Sizes and bounds of a stream.

    Attributes:
        rollouts_per_task: G.
        sampling: Sampling parameters of training rollouts.
        max_staleness: η: most optimizer steps between the sampling of a token and its training.
        max_groups: Most groups in flight: waiting, running, finished or in training.
        max_episodes: Most sandboxes at once.
        strips_skills: Whether what is shown is left out of the prompts that are trained on.
    """

    rollouts_per_task: int
    sampling: SamplingParams
    max_staleness: int
    max_groups: int
    max_episodes: int
    strips_skills: bool = False


@dataclass(slots=True, eq=False)
class GroupInFlight:
    """A group that is waiting, running or finished.

    Attributes:
        admission: How it was admitted.
        plan: It as a plan of one task.
        slots: Rollouts that are over, by number.
        reviews: Their verdicts, by number.
        pairs: The pool by which it is judged, from when its first agent was done.
        tasks: Its episodes.
        oldest: Version of the oldest token: a lower bound while it runs, exact once it is
            complete; `None` before the first token.
        num_left: Rollouts whose agent is done.
        settled_at: When the last agent was done, in batches of the gate: the order of completion
            in lockstep.
        is_complete: Whether all rollouts are over and judged.
    """

    admission: Admission
    plan: RolloutPlan
    slots: dict[int, Trajectory | RolloutFailure] = field(default_factory=dict)
    reviews: dict[int, Review] = field(default_factory=dict)
    pairs: tuple[RubricSkillPair, ...] | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    oldest: int | None = None
    num_left: int = 0
    settled_at: int | None = None
    is_complete: bool = False

    @property
    def serial(self) -> int:
        """Number of the group in the run."""
        return self.admission.serial

    @property
    def survivors(self) -> list[Trajectory]:
        """Graded rollouts so far."""
        return [slot for slot in self.slots.values() if isinstance(slot, Trajectory)]

    def finished(self) -> FinishedGroup:
        """The group in slots; it must be complete."""
        order = range(len(self.slots))
        return FinishedGroup(
            admission=self.admission,
            group=TrajectoryGroup(
                task=self.admission.sample.task, slots=tuple(self.slots[j] for j in order)
            ),
            reviews=tuple(self.reviews.get(j) for j in order),
        )


def plan_of(admission: Admission, options: StreamOptions) -> RolloutPlan:
    """The group as a plan of one task."""
    index = FIRST_INDEX + admission.serial
    return RolloutPlan(
        tasks=(admission.sample.task,),
        rollouts_per_task=options.rollouts_per_task,
        version=admission.version,
        sampling=options.sampling,
        skills=admission.skills,
        shown={(index, rollout): own for rollout, own in admission.shown.items()},
        strips_skills=options.strips_skills,
        first_index=index,
    )
