"""Checkpoints at step boundaries that survive any death of the process."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from arise.errors import ConfigError
from arise.runs.folder import checkpoint_name, checkpoint_step, complete_checkpoints

log = logging.getLogger(__name__)


class StepCheckpoint(Checkpoint):
    """Saves every `every_steps` iterations, at the end, and when the run is interrupted.

    A save goes to a hidden folder that is renamed when it is complete, so a folder with a
    checkpoint's name is always whole. Between the optimizer step and the end of the iteration an
    interrupt waits: weights and curriculum would not match there.

    Args:
        folder: Where checkpoints go.
        every_steps: Iterations between two saves.
        keep_last: Newest checkpoints to keep; 0 keeps all.

    Raises:
        ConfigError: A number is out of range.
    """

    def __init__(self, *, folder: Path, every_steps: int, keep_last: int) -> None:
        if every_steps < 1:
            raise ConfigError(f"callbacks.checkpoint.every_steps = {every_steps} must be 1 or more")
        if keep_last < 0:
            raise ConfigError(f"callbacks.checkpoint.keep_last = {keep_last} must be 0 or more")
        super().__init__()
        self._folder = folder
        self._every_steps = every_steps
        self._keep_last = keep_last
        self._interrupts = _DeferredInterrupts()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove checkpoints later than the one this run goes on from.

        Their iterations are about to be done again, perhaps with other settings; left there, they
        would be taken for this run's.
        """
        if trainer.is_global_zero:
            for path in complete_checkpoints(self._folder.parent):
                if checkpoint_step(path) > trainer.global_step:
                    log.warning("%s is removed: the run goes on from before it", path)
                    shutil.rmtree(path)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """From here to the end of the iteration, an interrupt waits."""
        self._interrupts.defer()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save if it is time, then let a waiting interrupt through."""
        is_last = trainer.global_step == trainer.max_steps
        if is_last or trainer.global_step % self._every_steps == 0:
            self._save(trainer)
        self._interrupts.release()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save the last step boundary if the user interrupted; a fault's state is not saved."""
        self._interrupts.restore()
        if isinstance(exception, KeyboardInterrupt) and trainer.training:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        path = self._folder / checkpoint_name(trainer.global_step)
        if trainer.strategy.broadcast(path.exists()):
            return
        hidden = self._folder / f".saving_{path.name}"
        if trainer.is_global_zero:
            shutil.rmtree(hidden, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
        trainer.strategy.barrier()
        trainer.save_checkpoint(hidden)
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            _sync_folder(hidden)
            hidden.rename(path)
            self._prune()

    def _prune(self) -> None:
        if self._keep_last:
            for path in complete_checkpoints(self._folder.parent)[: -self._keep_last]:
                shutil.rmtree(path)


def _sync_folder(folder: Path) -> None:
    """Force a folder's files to disk before its rename makes them count."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _DeferredInterrupts:
    """Holds back SIGINT and remembers whether one came."""

    def __init__(self) -> None:
        self._original: Any = None
        self._is_pending = False

    def defer(self) -> None:
        if threading.current_thread() is threading.main_thread() and self._original is None:
            self._original = signal.signal(signal.SIGINT, self._remember)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self._is_pending = True

    def restore(self) -> None:
        if self._original is not None:
            signal.signal(signal.SIGINT, self._original)
            self._original = None

    def release(self) -> None:
        """Go back to normal; raise the interrupt that waited."""
        self.restore()
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt
