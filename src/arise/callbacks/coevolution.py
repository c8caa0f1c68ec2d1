"""The curriculum learns from each iteration, and the pool evolves on schedule."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer

from arise.aio import EventLoopThread
from arise.curriculum.curriculum import Curriculum
from arise.llm.chat import ChatModel
from arise.types import Iteration


class CoEvolutionCallback(Callback):
    """Feeds finished iterations to the curriculum and runs the life-cycle update (Alg. L17 to L28).

    Args:
        loop: The run's event loop.
        curriculum: Sampler, pool and evidence; it holds the state and the schedule.
        models: Chat models of judge and reflection, started here; none without rubrics.
    """

    def __init__(
        self, *, loop: EventLoopThread, curriculum: Curriculum, models: tuple[ChatModel, ...] = ()
    ) -> None:
        self._loop = loop
        self._curriculum = curriculum
        self._models = models

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that judge and reflection can be reached."""
        if trainer.is_global_zero:
            for model in self._models:
                self._loop.run(model.start())

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Observe; at the end of a window, evolve the pool."""
        if not trainer.is_global_zero:
            return
        self._curriculum.observe(batch)
        report = self._loop.run(self._curriculum.evolve(trainer.global_step))
        if report is not None:
            batch.metrics |= report.metrics

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close connections."""
        for model in self._models:
            self._loop.run(model.stop())
