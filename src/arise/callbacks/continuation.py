"""A run that goes on forgets what its checkpoint does not know."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from arise.runs.folder import RunFolder, checkpoint_step, complete_checkpoints
from arise.runs.records import record_step
from arise.runs.resume import record_config

log = logging.getLogger(__name__)


class ContinuationCallback(Callback):
    """Removes what later iterations left, once the checkpoint is back in place.

    They are about to be done again, perhaps with other settings. The order survives a death at any
    moment: first later checkpoints, the newest first, so that `ckpt_path=last` never finds one
    whose records are gone; then the configuration in force, trajectories and TensorBoard points.
    The pool's events go when the recorder starts. If restoring fails, nothing is lost.

    Args:
        folder: The run's folder, with the checkpoint to go on from.
        cfg: The configuration with which the run goes on.
        overrides: The command line's overrides, for the record.
    """

    def __init__(self, *, folder: RunFolder, cfg: DictConfig, overrides: list[str]) -> None:
        self._folder = folder
        self._cfg = cfg
        self._overrides = overrides

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what came after `trainer.global_step`."""
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        for path in reversed(complete_checkpoints(self._folder.path)):
            if checkpoint_step(path) > step:
                log.warning("%s is removed: the run goes on from before it", path)
                remove_checkpoint(path)
        record_config(self._folder, self._cfg, self._overrides)
        for path in self._folder.trajectories.glob("step_*.jsonl.gz"):
            if record_step(path) > step:
                path.unlink()
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                _purge_points(logger, step + 1)


def _purge_points(logger: TensorBoardLogger, step: int) -> None:
    """Tell readers to forget earlier points of `step` and later ones.

    What `SummaryWriter(purge_step=...)` writes; the writer is made before the checkpoint is put
    back, when it is not yet sure that the run goes on.
    """
    restart = Event(step=step, session_log=SessionLog(status=SessionLog.START))
    logger.experiment.file_writer.add_event(restart)


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint so that a death in the middle leaves none that is half there."""
    hidden = checkpoint.with_name(f".removing_{checkpoint.name}")
    checkpoint.rename(hidden)
    shutil.rmtree(hidden)
