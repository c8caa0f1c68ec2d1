"""Checkpoints at step boundaries that survive any death of the process."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.distributed.checkpoint.api import CheckpointException

from arise.callbacks.continuation import remove_checkpoint
from arise.errors import (
    AriseError,
    ConfigError,
    InferenceError,
    JudgeError,
    RankError,
    SandboxError,
    one_line,
)
from arise.runs.folder import checkpoint_name, checkpoint_step, complete_checkpoints
from arise.runs.manifest import write_manifest

log = logging.getLogger(__name__)

# What ends a run from outside of it, all ranks together and between two steps.
_OUTAGES = (InferenceError, JudgeError, SandboxError, RankError)


class StepCheckpoint(Checkpoint):
    """Saves every `every_steps` iterations, at the end, and when the run has to stop in between.

    A save goes to a hidden folder that is renamed when it is complete, and a checkpoint is renamed
    before it is removed, so a folder with a checkpoint's name is always whole. Between the
    optimizer step and the end of the iteration an interrupt waits: weights and curriculum would
    not match there.

    Args:
        folder: Where checkpoints go.
        every_steps: Iterations between two saves.
        keep_last: Newest checkpoints to keep; 0 keeps all.
        keep_every: Checkpoints whose step is a multiple of this stay for ever; 0 keeps none beyond
            `keep_last`.

    Raises:
        ConfigError: A number is out of range.
    """

    def __init__(self, *, folder: Path, every_steps: int, keep_last: int, keep_every: int) -> None:
        if every_steps < 1:
            raise ConfigError(f"callbacks.checkpoint.every_steps = {every_steps} must be 1 or more")
        for key, value in (("keep_last", keep_last), ("keep_every", keep_every)):
            if value < 0:
                raise ConfigError(f"callbacks.checkpoint.{key} = {value} must be 0 or more")
        super().__init__()
        self._folder = folder
        self._every_steps = every_steps
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._interrupts = _DeferredInterrupts()
        self._is_started = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what a death in the middle of a save or a removal left."""
        if trainer.is_global_zero:
            for leftover in self._folder.glob(".*_step_*"):
                shutil.rmtree(leftover)
        self._is_started = True

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
        """Save the last step boundary if the run was interrupted, or lost what it plays with.

        A fault's state is not saved, nor one in the middle of a step.
        """
        is_between_steps = self._is_started and not self._interrupts.are_deferred
        self._interrupts.restore()
        is_interrupt = isinstance(exception, KeyboardInterrupt | SIGTERMException)
        is_outage = isinstance(exception, _OUTAGES) and is_between_steps
        if (is_interrupt or is_outage) and trainer.training:
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
            step, num_processes = trainer.global_step, trainer.world_size
            write_manifest(hidden, step=step, num_processes=num_processes)
            _sync_folder(hidden)
            hidden.rename(path)
            _sync(self._folder)
            self._prune()

    def _prune(self) -> None:
        if not self._keep_last:
            return
        for path in complete_checkpoints(self._folder.parent)[: -self._keep_last]:
            if not self._keep_every or checkpoint_step(path) % self._keep_every:
                remove_checkpoint(path)


class RestoreGuard(Callback):
    """Watches over a checkpoint being put back.

    Whatever goes wrong meanwhile becomes one clear error. And the optimizer's constants stay those
    of the configuration, which a checkpoint would silently replace: whoever goes on with another
    learning rate (`resume.force`) gets it.

    The first of all callbacks. The strategy restores after `on_fit_start`, so the time between the
    two hooks is the restoring.

    Args:
        checkpoint: The checkpoint; `None` for a fresh run.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self._checkpoint = checkpoint
        self._is_restoring = False
        self._constants: list[dict[str, Any]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restoring begins: remember the configured constants."""
        self._is_restoring = self._checkpoint is not None
        self._constants = [
            {key: value for key, value in group.items() if key not in ("params", "lr")}
            for optimizer in trainer.optimizers
            for group in optimizer.param_groups
        ]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restoring is over: put the constants back, the learning rate where its schedule is."""
        if not self._is_restoring:
            return
        self._is_restoring = False
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        for group, constants in zip(groups, self._constants, strict=True):
            group.update(constants)
        for config in trainer.lr_scheduler_configs:
            scheduler: Any = config.scheduler
            groups = scheduler.optimizer.param_groups
            scheduler.base_lrs = [group["initial_lr"] for group in groups]
            for group, factor in zip(groups, scheduler.lr_lambdas, strict=True):
                group["lr"] = group["initial_lr"] * factor(scheduler.last_epoch)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Surround `Trainer.fit` with this.

        Raises:
            ConfigError: The checkpoint cannot be put back.
        """
        try:
            yield
        except (Exception, CheckpointException) as error:
            if isinstance(error, AriseError) or not self._is_restoring:
                raise
            log.debug("restoring failed", exc_info=error)
            cause: BaseException = error
            if isinstance(error, CheckpointException):
                cause = next(failure for failure, _ in error.failures.values())
            raise ConfigError(
                f"ckpt_path: {str(self._checkpoint)!r} cannot be put back into this run: "
                f"{one_line(cause, limit=200)}. If it is damaged, give an older checkpoint"
            ) from None


def _sync_folder(folder: Path) -> None:
    """Force a folder's files to disk before its rename makes them count."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _DeferredInterrupts:
    """Holds back SIGINT and remembers whether one came."""

    def __init__(self) -> None:
        self._original: Any = None
        self._is_deferring = False
        self._is_pending = False

    @property
    def are_deferred(self) -> bool:
        """Whether an iteration is between its optimizer step and its end."""
        return self._is_deferring

    def defer(self) -> None:
        self._is_deferring = True
        if threading.current_thread() is threading.main_thread() and self._original is None:
            self._original = signal.signal(signal.SIGINT, self._remember)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self._is_pending = True

    def restore(self) -> None:
        self._is_deferring = False
        if self._original is not None:
            signal.signal(signal.SIGINT, self._original)
            self._original = None

    def release(self) -> None:
        """Go back to normal; raise the interrupt that waited."""
        self.restore()
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt
