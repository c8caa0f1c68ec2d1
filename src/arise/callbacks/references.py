"""Rollouts of the initial policy: the other side of OnlineRubrics' comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.inference.base import Engine, SamplingParams
from arise.inference.weights import fingerprints, verify
from arise.modules.loading import ModelLoader
from arise.types import Task, TrajectoryGroup


class InitialPolicy:
    """Plays tasks as the policy was before training, then gives the engine the current one back.

    Seeds depend on the task alone, so a task's references are the same at every step and after a
    resume; within a run they are played once.

    Args:
        engine: Plays both policies, one after the other.
        orchestrator: Runs the episodes.
        loader: Where the initial weights come from.
        sampling: As in training rollouts.
        rollouts_per_task: References of one task.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        orchestrator: Orchestrator,
        loader: ModelLoader,
        sampling: SamplingParams,
        rollouts_per_task: int,
    ) -> None:
        self._engine = engine
        self._orchestrator = orchestrator
        self._loader = loader
        self._sampling = sampling
        self._rollouts_per_task = rollouts_per_task
        self._initial: Mapping[str, Any] | None = None
        self._groups: dict[str, TrajectoryGroup] = {}

    async def groups(
        self, tasks: Sequence[Task], *, current: Mapping[str, Any], version: int
    ) -> list[TrajectoryGroup]:
        """References of `tasks`, in their order.

        Args:
            tasks: The iteration's tasks.
            current: The trainer's weights, which the engine holds before and after.
            version: Their policy version.

        Raises:
            WeightSyncError: The engine does not hold what it was given.
        """
        new = [task for task in tasks if task.id not in self._groups]
        if new:
            if self._initial is None:
                self._initial = dict(self._loader.model().state_dict())
            await self._load(self._initial, 0)
            try:
                plan = RolloutPlan(
                    tasks=new,
                    rollouts_per_task=self._rollouts_per_task,
                    version=0,
                    sampling=self._sampling,
                    purpose="reference",
                )
                played = await self._orchestrator.run(plan)
            finally:
                await self._load(current, version)
            self._groups |= {group.task.id: group for group in played}
        return [self._groups[task.id] for task in tasks]

    async def _load(self, weights: Mapping[str, Any], version: int) -> None:
        report = await self._engine.load_weights(weights, version=version)
        verify(fingerprints(weights, dtype=self._engine.dtype), report, version=version)
