"""Plays the attempts of a benchmark that are missing, and writes each down as it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.evaluation.atif import to_atif
from arise.evaluation.attempts import Attempt, AttemptLog, attempt_of
from arise.inference.base import SamplingParams
from arise.types import RolloutFailure, Task, Trajectory


async def play(
    orchestrator: Orchestrator,
    tasks: Sequence[Task],
    log: AttemptLog,
    *,
    num_attempts: int,
    sampling: SamplingParams,
    names: tuple[str, str],
    quiet: bool,
) -> None:
    """Play what `log` does not hold yet; skills of training are never given.

    Args:
        orchestrator: Runs the episodes.
        tasks: All tasks.
        log: Attempts so far; filled.
        num_attempts: M.
        sampling: Evaluation sampling.
        names: Of the harness and the model, for the trajectories' documents.
        quiet: Show no progress bar.
    """
    done = frozenset(
        (index, attempt)
        for index, task in enumerate(tasks)
        for attempt in range(num_attempts)
        if (task.id, attempt) in log.attempts
    )
    plan = RolloutPlan(
        tasks=tasks,
        rollouts_per_task=num_attempts,
        version=0,
        sampling=sampling,
        purpose="evaluate",
        skip=done,
    )
    folder = log.folder / "trajectories"
    folder.mkdir(exist_ok=True)
    with _Bar(len(tasks) * num_attempts, log.attempts.values(), quiet=quiet) as bar:

        async def keep(index: int, slot: Trajectory | RolloutFailure) -> None:
            task = tasks[index]
            if isinstance(slot, Trajectory):
                document = to_atif(slot, agent=names[0], model=names[1])
                file = folder / f"{_file_name(task.id)}-{slot.rollout + 1}.json"
                file.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
            attempt = attempt_of(task, slot)
            log.add(attempt)
            bar.count(attempt)

        await orchestrator.run(plan, on_trajectory=keep, on_failure=keep)


def _file_name(task_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", task_id)


class _Bar:
    """A progress bar: attempts, passes and errors so far."""

    def __init__(self, total: int, attempts: Iterable[Attempt], *, quiet: bool) -> None:
        self._passed = self._judged = self._errors = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet,
        )
        self._bar = self._progress.add_task("attempts", total=total, shown="")
        for attempt in attempts:
            self.count(attempt)

    def count(self, attempt: Attempt) -> None:
        """Show one more attempt."""
        self._passed += attempt.outcome is True
        self._judged += attempt.outcome is not None
        self._errors += bool(attempt.error)
        shown = f"passed {self._passed}/{self._judged}"
        if self._errors:
            shown += f", {self._errors} erred"
        self._progress.update(self._bar, advance=1, shown=shown)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
