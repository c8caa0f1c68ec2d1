"""Tells the rank watch what this process is at, through the trainer's hooks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer

from arise.errors import RankError
from arise.modules.rank_watch import RankWatch, WatchOptions
from arise.runs.folder import newest_checkpoint
from arise.types import Iteration

STARTING = "start"
ROLLOUTS = "rollouts"
TRAINING = "training step"
SYNC = "weight update and what follows it"
ENDING = "end"


def make_watch(options: Mapping[str, Any], run: Path) -> WatchCallback:
    """The watch of this process, which tells the user on standard error what ended the run.

    Args:
        options: The keys of `WatchOptions`.
        run: The run's folder.
    """

    def say(problem: str) -> None:
        print(f"\nerror: {problem}. {newest_checkpoint(run)}", file=sys.stderr, flush=True)

    return WatchCallback(RankWatch(WatchOptions(**options), on_end=say))


class WatchCallback(Callback):
    """Comes before all others that may wait or fail.

    Attributes:
        watch: This rank's.
    """

    def __init__(self, watch: RankWatch) -> None:
        self.watch = watch
        self._meaning: RankError | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch, in place of Lightning's observer of the processes it has started.

        That one kills this process without a word when another dies. It looks at the list that it
        was given, and an empty one ends it.
        """
        launcher: Any = trainer.strategy.launcher
        children = list(getattr(launcher, "procs", None) or ())
        if children:
            launcher.procs.clear()
            launcher.procs = children
        self.watch.start(children)
        self.watch.enter(STARTING, 0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The engine starts, however long it takes."""
        self.watch.enter(STARTING, trainer.global_step)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Iteration, batch_idx: int
    ) -> None:
        """Rank 0 plays, the others wait for it."""
        self.watch.enter(ROLLOUTS, batch.index)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        """A micro-batch's forward pass is done."""
        self.watch.advance()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """And its backward pass."""
        self.watch.advance()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """The optimizer step is done."""
        self.watch.enter(SYNC, batch.index)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is left is rank 0's work, and the model's export."""
        self.watch.enter(ENDING, trainer.global_step)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Find out whether another rank is the cause, and tell those that wait for this one."""
        self._meaning = self.watch.explain(exception)
        self.watch.leave(exception)
        self.watch.enter(ENDING, trainer.global_step)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Surround `Trainer.fit` with this.

        Raises:
            RankError: A collective call failed, with phase and iteration.
        """
        try:
            yield
        except RuntimeError as error:
            if self._meaning is None:
                raise
            raise self._meaning from error
