"""Rollouts of real task folders in real sandboxes, by a policy whose replies are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from arise.agents.orchestrator import RolloutPlan
from arise.inference.base import SamplingParams
from arise.types import RolloutFailure, Task, Trajectory
from shell_agent import make_orchestrator, scripted_engine


def play(
    tasks: Sequence[Task], replies: Sequence[Sequence[str]], factory: Any
) -> list[Trajectory | RolloutFailure]:
    """One rollout of each task, in which the policy says the replies of the same index."""
    script = {(index, 0): list(texts) for index, texts in enumerate(replies)}
    orchestrator = make_orchestrator(scripted_engine(script), factory)
    plan = RolloutPlan(
        tasks=tasks,
        rollouts_per_task=1,
        version=0,
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0),
    )
    try:
        groups = asyncio.run(orchestrator.run(plan))
    finally:
        factory.close()
    return [group.slots[0] for group in groups]
