"""Writes what happened into the run's folder: trajectories, pool events, held-out results."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer

from arise.callbacks.evaluation import EvaluationCallback
from arise.curriculum.curriculum import Curriculum
from arise.llm.text import clean_text
from arise.rubrics.events import read_events, replay
from arise.runs.folder import RunFolder
from arise.runs.records import slot_records, trajectory_file, write_records
from arise.types import Iteration

log = logging.getLogger(__name__)


class RecorderCallback(Callback):
    """Records iterations; when a run goes on, the events after its checkpoint are removed first.

    Args:
        folder: The run's folder.
        curriculum: Source of the pool's events.
        evaluation: Source of held-out results; `None` if nothing is evaluated.
    """

    def __init__(
        self,
        *,
        folder: RunFolder,
        curriculum: Curriculum,
        evaluation: EvaluationCallback | None = None,
    ) -> None:
        self._folder = folder
        self._curriculum = curriculum
        self._evaluation = evaluation
        self._num_results = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget events that the checkpoint does not know: they are about to come again."""
        if not trainer.is_global_zero:
            return
        truncate_events(self._folder.pool_log, trainer.global_step)
        self._append_events()
        self._write_results()
        self._compare_pool()

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
        self._write_results()

    def _append_events(self) -> None:
        events = self._curriculum.pop_events()
        if events:
            lines = (clean_text(json.dumps(event, ensure_ascii=False)) for event in events)
            with self._folder.pool_log.open("a", encoding="utf-8") as log_file:
                log_file.write("".join(line + "\n" for line in lines))

    def _write_results(self) -> None:
        """All held-out results so far; none of iterations that will be done again."""
        if self._evaluation is None or len(self._evaluation.results) == self._num_results:
            return
        results = self._evaluation.results
        self._num_results = len(results)
        lines = [
            json.dumps(
                {
                    "step": step,
                    **asdict(results[step]),
                    "extra": {
                        name: asdict(own[step])
                        for name, own in self._evaluation.extra_results.items()
                        if step in own
                    },
                }
            )
            + "\n"
            for step in sorted(results)
        ]
        _replace(self._folder.evaluations, "".join(lines))

    def _compare_pool(self) -> None:
        """Say so if the events, which people read, do not tell how the pool came about."""
        path = self._folder.pool_log
        events = read_events(path, key="pool.jsonl") if path.is_file() else []
        if tuple(replay(events, where=str(path)).values()) != self._curriculum.pairs:
            log.warning("%s does not tell the pool of the checkpoint: was it changed?", path)


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
    _replace(path, "".join(kept))


def _replace(path: Path, text: str) -> None:
    """Give a file new content; whenever the process dies, it holds the old or the new one."""
    hidden = path.with_name(f".writing_{path.name}")
    hidden.write_text(text, encoding="utf-8")
    hidden.rename(path)
