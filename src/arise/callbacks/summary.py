"""The table at the end of a run: what changed, and where everything is."""

from __future__ import annotations

from pathlib import Path

from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from arise.callbacks.evaluation import EvaluationCallback
from arise.curriculum.curriculum import Curriculum
from arise.rubrics.events import read_events
from arise.runs.folder import RunFolder, complete_checkpoints
from arise.runs.story import event_counts


class SummaryCallback(Callback):
    """Prints the final table.

    Args:
        folder: The run's folder.
        curriculum: Source of the tasks that were set aside.
        evaluation: Source of held-out pass rates; `None` if there is no evaluation.
        quiet: Print nothing.
    """

    def __init__(
        self,
        *,
        folder: RunFolder,
        curriculum: Curriculum,
        evaluation: EvaluationCallback | None,
        quiet: bool,
    ) -> None:
        self._folder = folder
        self._curriculum = curriculum
        self._evaluation = evaluation
        self._quiet = quiet

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table, after the last checkpoint and the final model are written."""
        if trainer.is_global_zero and not self._quiet:
            Console().print(self._table(trainer))

    def _table(self, trainer: Trainer) -> Table:
        table = Table(title=f"{trainer.global_step} iterations", show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        results = self._evaluation.results if self._evaluation else {}
        if results:
            first, last = min(results), max(results)
            table.add_row(
                "held-out pass rate",
                f"{results[first]} before, {results[last]} after "
                f"(steps {first} and {last}, {results[last].num_tasks} tasks, no skills)",
            )
        for name, own in (self._evaluation.extra_results if self._evaluation else {}).items():
            if own:
                first, last = min(own), max(own)
                table.add_row(f"{name} pass rate", f"{own[first]} before, {own[last]} after")
        if self._folder.pool_log.is_file():
            counts = event_counts(read_events(self._folder.pool_log, key="pool.jsonl"))
            table.add_row("pairs", ", ".join(f"{n} {kind}" for kind, n in counts.items()))
        if self._curriculum.quarantined:
            table.add_row("tasks set aside", ", ".join(self._curriculum.quarantined))
        for name, path in self._places():
            table.add_row(name, str(path))
        return table

    def _places(self) -> list[tuple[str, Path]]:
        """What can be opened next; only what exists."""
        checkpoints = complete_checkpoints(self._folder.path)
        places = [
            ("trained policy", self._folder.final_model),
            ("checkpoint", checkpoints[-1] if checkpoints else self._folder.checkpoints),
            ("trajectories", self._folder.trajectories),
            ("pool events", self._folder.pool_log),
            ("tensorboard --logdir", self._folder.path / "tensorboard"),
        ]
        return [(name, path) for name, path in places if path.exists()]
