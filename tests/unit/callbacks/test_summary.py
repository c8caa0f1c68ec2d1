"""The end of a run names the tasks that were set aside."""

import io
from pathlib import Path

from lightning import Trainer
from rich.console import Console

from arise.callbacks.summary import SummaryCallback
from arise.curriculum.base import GroupObservation
from arise.curriculum.curriculum import Curriculum
from arise.curriculum.uniform import UniformSampler
from arise.runs.folder import RunFolder
from arise.types import Task


def test_quarantined_tasks_are_listed(tmp_path: Path) -> None:
    tasks = [Task(id=i, instruction="", path=tmp_path, tests=tmp_path) for i in ("ok", "broken")]
    sampler = UniformSampler(tasks=tasks, seed=0, quarantine_after=1)
    curriculum = Curriculum(sampler=sampler, tasks_per_step=1, seed=0)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    summary = SummaryCallback(
        folder=RunFolder(path=tmp_path), curriculum=curriculum, evaluation=None, quiet=False
    )

    def printed() -> str:
        console = Console(width=80, file=io.StringIO())
        console.print(summary._table(trainer))
        return console.file.getvalue()  # type: ignore[attr-defined]

    assert "set aside" not in printed()
    lost = GroupObservation(
        task_id="broken", tags=(), num_rollouts=2, outcomes=(), rewards=(), is_complete=False
    )
    sampler.observe(1, [lost])
    assert "tasks set aside" in printed()
    assert "broken" in printed()
