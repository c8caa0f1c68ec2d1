"""The task stream: one fetch is one sampled iteration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from lightning import LightningDataModule

from arise.curriculum.curriculum import Curriculum
from arise.types import Iteration


class IterationLoader:
    """A sized stream of iterations that is never read ahead.

    It has a length, so the trainer fetches a batch only when it trains it, and it has state
    methods, so the trainer knows that going on in the middle is exact: what to draw next is
    decided by the curriculum, whose state the data module saves.
    """

    def __init__(self, datamodule: TaskDataModule) -> None:
        self._datamodule = datamodule

    def __len__(self) -> int:
        return self._datamodule.max_steps

    def __iter__(self) -> Iterator[Iteration]:
        while True:
            yield self._datamodule.next_iteration()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the curriculum holds the state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: the curriculum holds the state."""


class TaskDataModule(LightningDataModule):
    """Owns the curriculum: sampler, evidence, pool and their generators, saved as one state.

    Args:
        curriculum: Draws iterations and learns from them.
        max_steps: Iterations of the run.
        draws: Whether a fetch draws the tasks; asynchronously admitting groups does.

    Only rank 0 draws; other ranks get an empty iteration with the same index, and their rows by
    scatter.
    """

    def __init__(self, *, curriculum: Curriculum, max_steps: int, draws: bool = True) -> None:
        super().__init__()
        self._draws = draws
        self.curriculum = curriculum
        self.max_steps = max_steps

    def train_dataloader(self) -> IterationLoader:
        """The stream of iterations."""
        return IterationLoader(self)

    def next_iteration(self) -> Iteration:
        """Draw the iteration that the trainer's step counter says comes next."""
        assert self.trainer is not None
        step, started_at = self.trainer.global_step, time.perf_counter()
        if self.trainer.is_global_zero and self._draws:
            iteration = self.curriculum.draw(step)
        else:
            iteration = Iteration(index=step)
        iteration.started_at = started_at
        return iteration

    def state_dict(self) -> dict[str, Any]:
        """The curriculum as it was before the draw of an iteration that is not finished."""
        return {"curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the curriculum back."""
        self.curriculum.load_state_dict(state_dict["curriculum"])
