"""Behaviour after a rubric has left the pool (Appendix G)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.inference.base import SamplingParams
from arise.rubrics.events import EventType
from arise.rubrics.pair import RubricSkillPair
from arise.types import Outcome, Review, Task, Trajectory


class Judging(Protocol):
    """Gives verdicts; never raises for a judge that fails."""

    async def review(
        self,
        task: Task,
        trajectory: Trajectory,
        pairs: Sequence[Any],
        *,
        asks_diagnostics: bool = True,
    ) -> Review:
        """Verdicts on `pairs`, and findings if they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredRubric:
    """A rubric at its retirement.

    Attributes:
        pair: With the rubric's text as it was.
        step: k+1 of the update that retired it.
        num_passes: Pass verdicts of its last window.
        num_applicable: Valid applicable verdicts of that window.
        task_ids: Tasks sampled in that window: the fixed task set.
    """

    pair: RubricSkillPair
    step: int
    num_passes: int
    num_applicable: int
    task_ids: tuple[str, ...]

    @property
    def percent(self) -> float:
        """p̂ at retirement, in percent."""
        return 100.0 * self.num_passes / self.num_applicable


def retired_rubrics(events: Iterable[Mapping[str, Any]]) -> tuple[RetiredRubric, ...]:
    """Every retirement in a pool's events, in their order."""
    return tuple(
        RetiredRubric(
            pair=RubricSkillPair.from_dict(event["pair"], where="pool.jsonl"),
            step=int(event["step"]),
            num_passes=int(event["num_passes"]),
            num_applicable=int(event["num_applicable"]),
            task_ids=tuple(event["task_ids"]),
        )
        for event in events
        if event["type"] == EventType.RETIRED
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviourRate:
    """How often a policy meets a rubric on a task set.

    Attributes:
        num_passes: Pass verdicts.
        num_applicable: Valid applicable verdicts.
        num_lost: Rollouts without a valid verdict: lost to infrastructure, or the judge failed.
    """

    num_passes: int
    num_applicable: int
    num_lost: int

    @property
    def percent(self) -> float | None:
        """The rate in percent; `None` where the rubric never applied."""
        return 100.0 * self.num_passes / self.num_applicable if self.num_applicable else None


async def behaviour_rate(
    orchestrator: Orchestrator,
    judge: Judging,
    rubric: RubricSkillPair,
    tasks: Sequence[Task],
    *,
    rollouts_per_task: int,
    sampling: SamplingParams,
) -> BehaviourRate:
    """Play a fixed task set without skills and judge it by one rubric.

    Seeds do not depend on the policy, so two policies differ by themselves alone.

    Args:
        orchestrator: Runs the episodes with the policy that the engine holds.
        judge: The training's judge.
        rubric: The rubric, its text as at retirement.
        tasks: The task set.
        rollouts_per_task: Rollouts of each task.
        sampling: As in training rollouts.
    """
    outcomes: list[Outcome | None] = []

    async def judge_one(index: int, trajectory: Trajectory) -> None:
        review = await judge.review(tasks[index], trajectory, [rubric], asks_diagnostics=False)
        outcomes.append(review.outcomes.get(rubric.id))

    await orchestrator.run(
        RolloutPlan(
            tasks=tasks,
            rollouts_per_task=rollouts_per_task,
            version=0,
            sampling=sampling,
            purpose="retention",
        ),
        on_trajectory=judge_one,
    )
    num_valid = sum(outcome is not None for outcome in outcomes)
    return BehaviourRate(
        num_passes=outcomes.count(Outcome.PASS),
        num_applicable=outcomes.count(Outcome.PASS) + outcomes.count(Outcome.FAIL),
        num_lost=len(tasks) * rollouts_per_task - num_valid,
    )
