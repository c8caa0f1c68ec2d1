"""The all-fail rate on a fixed task set (Figure 4c)."""

from __future__ import annotations

from collections.abc import Sequence

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.inference.base import SamplingParams
from arise.types import InjectedSkill, Task, TrajectoryGroup


async def all_fail_rate(
    orchestrator: Orchestrator,
    tasks: Sequence[Task],
    *,
    rollouts_per_task: int,
    sampling: SamplingParams,
    skills: tuple[InjectedSkill, ...],
) -> float | None:
    """Share of tasks, in percent, whose rollouts all fail, with a run's own guidance in the prompt.

    Each task counts the same, however often training drew it. A task without a survivor is left
    out.

    Args:
        orchestrator: Runs the episodes with the policy that the engine holds.
        tasks: The task set.
        rollouts_per_task: G.
        sampling: As in training rollouts.
        skills: Skills that were active at the time.
    """
    groups = await orchestrator.run(
        RolloutPlan(
            tasks=tasks,
            rollouts_per_task=rollouts_per_task,
            version=0,
            sampling=sampling,
            skills=skills,
            purpose="all-fail",
        )
    )
    return share_of_all_fail(groups)


def share_of_all_fail(groups: Sequence[TrajectoryGroup]) -> float | None:
    """Groups without a success among those with a survivor, in percent; `None` for no such group.

    Example: groups with successes 0 of 8, 3 of 8 and all rollouts lost give 50.
    """
    with_survivors = [group for group in groups if group.trajectories]
    if not with_survivors:
        return None
    failed = sum(not any(t.is_success for t in group.trajectories) for group in with_survivors)
    return 100.0 * failed / len(with_survivors)
