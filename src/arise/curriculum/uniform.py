"""Uniform sampling: the ablation without adaptive sampling, and outcome-only training."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.base import TaskSampler
from arise.types import SampledTask


class UniformSampler(TaskSampler):
    """Every available task is equally likely; no task twice in a batch, each batch afresh."""

    kind: ClassVar[str] = "uniform"

    def _choose(self, num_tasks: int, available: NDArray[np.bool_]) -> list[SampledTask]:
        candidates = np.flatnonzero(available)
        chosen = self._generator.choice(
            candidates, size=min(num_tasks, len(candidates)), replace=False
        )
        return [SampledTask(task=self._table.tasks[i], reason="uniform") for i in chosen]
