"""Writes what happened into the run's folder: trajectories and the pool's events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer

from arise.curriculum.curriculum import Curriculum
from arise.llm.text import clean_text
from arise.runs.folder import RunFolder
from arise.runs.records import slot_records, trajectory_file, write_records
from arise.types import Iteration


class RecorderCallback(Callback):
    """Records iterations; when a run goes on, what came after its checkpoint is removed first.

    Args:
        folder: The run's folder.
        curriculum: Source of the pool's events.
    """

    def __init__(self, *, folder: RunFolder, curriculum: Curriculum) -> None:
        self._folder = folder
        self._curriculum = curriculum

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget steps that the checkpoint does not know: they are about to be done again."""
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        for path in self._folder.trajectories.glob("step_*.jsonl.gz"):
            if path > trajectory_file(self._folder.trajectories, step):
                path.unlink()
        truncate_events(self._folder.pool_log, step)
        self._append_events()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Record the iteration and the life-cycle events of its end."""
        if not trainer.is_global_zero:
            return
        path = trajectory_file(self._folder.trajectories, trainer.global_step)
        write_records(path, slot_records(batch))
        self._append_events()

    def _append_events(self) -> None:
        events = self._curriculum.pop_events()
        if events:
            with self._folder.pool_log.open("a", encoding="utf-8") as log:
                for event in events:
                    log.write(clean_text(json.dumps(event, ensure_ascii=False)) + "\n")


def truncate_events(path: Path, step: int) -> None:
    """Keep the events of a pool log up to `step`; a last line that was cut off goes too."""
    if not path.is_file():
        return
    kept = []
    # Not splitlines(): texts may hold other characters that it takes for line ends. A line that
    # was cut off may end inside a character.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            break
        if event["step"] <= step:
            kept.append(line + "\n")
    hidden = path.with_name(f".writing_{path.name}")
    hidden.write_text("".join(kept), encoding="utf-8")
    hidden.rename(path)
