"""Eq. 21: pass rates over attempts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """A pass rate in percent, from unrounded per-run rates.

    Attributes:
        percent: 100/(N·M) Σ b over N tasks and M attempts; an attempt that errs counts as 0.
        runs_percent: Rate of each of the M attempts over all tasks.
        num_tasks: N.
        num_errors: Attempts without a verdict.
    """

    percent: float
    runs_percent: tuple[float, ...]
    num_tasks: int
    num_errors: int

    @property
    def run_std(self) -> float:
        """Sample standard deviation of the per-run rates; 0 for one run."""
        return statistics.stdev(self.runs_percent) if len(self.runs_percent) > 1 else 0.0


def pass_rate(attempts: Sequence[Sequence[bool | None]]) -> PassRate:
    """Eq. 21 over `attempts[i][a]`: whether attempt a solved task i, `None` for an error.

    Example: 20/48, 25/42, 22/42, 16/42, 11/27, 8/24, 5/21 and 12/15 by domain pool to
    119/261 = 45.6 %.

    Raises:
        ValueError: No task, or tasks with different numbers of attempts.
    """
    if not attempts or not attempts[0] or len({len(row) for row in attempts}) != 1:
        raise ValueError("a pass rate needs tasks with equally many attempts, at least one each")
    num_tasks, num_runs = len(attempts), len(attempts[0])
    runs = tuple(
        100.0 * sum(row[a] is True for row in attempts) / num_tasks for a in range(num_runs)
    )
    solved = sum(outcome is True for row in attempts for outcome in row)
    return PassRate(
        percent=100.0 * solved / (num_tasks * num_runs),
        runs_percent=runs,
        num_tasks=num_tasks,
        num_errors=sum(outcome is None for row in attempts for outcome in row),
    )
