"""Held-out evaluation: fixed tasks, no evolved skills, generators of its own."""

from __future__ import annotations

from collections.abc import Sequence

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.evaluation.pass_rate import PassRate, pass_rate
from arise.inference.base import SamplingParams
from arise.types import Task, Trajectory


async def evaluate(
    orchestrator: Orchestrator,
    tasks: Sequence[Task],
    *,
    attempts_per_task: int,
    sampling: SamplingParams,
) -> PassRate:
    """Pass rate of the policy that the engine holds.

    Seeds do not depend on the step, so two evaluations differ by the policy alone.

    Args:
        orchestrator: Runs the episodes.
        tasks: Held-out tasks.
        attempts_per_task: M.
        sampling: Evaluation sampling; truncation is allowed here.
    """
    groups = await orchestrator.run(
        RolloutPlan(
            tasks=tasks,
            rollouts_per_task=attempts_per_task,
            version=0,
            sampling=sampling,
            purpose="evaluate",
        )
    )
    return pass_rate(
        [
            [slot.is_success if isinstance(slot, Trajectory) else None for slot in group.slots]
            for group in groups
        ],
        domains=[task.domain for task in tasks],
    )
