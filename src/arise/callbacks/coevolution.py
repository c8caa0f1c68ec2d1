"""The curriculum learns from each iteration, and the pool evolves on schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from arise.aio import EventLoopThread
from arise.callbacks.board import pair_page
from arise.curriculum.curriculum import Curriculum
from arise.llm.chat import ChatModel
from arise.rubrics.events import EventType
from arise.rubrics.evolution import EvolutionReport
from arise.rubrics.judge import Judge
from arise.runs.story import story_line
from arise.types import Iteration

_PAGED = (EventType.CREATED, EventType.REFINED, EventType.RETIRED)


class CoEvolutionCallback(Callback):
    """Feeds finished iterations to the curriculum and runs the life-cycle update (Alg. L17 to L28).

    Args:
        loop: The run's event loop.
        curriculum: Sampler, pool and evidence; it holds the state and the schedule.
        judge: Reviewed the trajectories, and is stopped here; `None` without rubrics.
        models: Chat models of judge and reflection, started here; none without rubrics.
        quiet: Print nothing.
    """

    def __init__(
        self,
        *,
        loop: EventLoopThread,
        curriculum: Curriculum,
        judge: Judge | None,
        models: tuple[ChatModel, ...],
        quiet: bool,
    ) -> None:
        self._loop = loop
        self._curriculum = curriculum
        self._judge = judge
        self._models = models
        self._quiet = quiet

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
            self._tell(trainer, report)

    def _tell(self, trainer: Trainer, report: EvolutionReport) -> None:
        """The update as sentences, in the terminal and as text in TensorBoard."""
        lines = [line for line in map(story_line, report.events) if line is not None]
        if not lines:
            return
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                text = "\n".join(f"- {line}" for line in lines)
                logger.experiment.add_text("pool/story", text, report.step)
                for tag, page in self._pages(report):
                    logger.experiment.add_text(tag, page, report.step)
        if not self._quiet:
            for line in lines:
                print(f"  pool: {line}", flush=True)

    def _pages(self, report: EvolutionReport) -> Iterator[tuple[str, str]]:
        """A tag and a text for each pair that is new, refined or retired."""
        pairs = {pair.id: pair for pair in self._curriculum.pairs}
        for event in report.events:
            if event["type"] in _PAGED:
                # A retired pair is no longer in the pool; its event has its texts.
                pair = event.get("pair") or pairs[event["pair_id"]].to_dict()
                yield f"pair/R{event['pair_id']}", pair_page(event, pair)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close connections."""
        for model in self._models:
            self._loop.run(model.stop())
        if self._judge is not None:
            self._loop.run(self._judge.stop())
