"""Eq. 21: pass rates over attempts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """A pass rate in percent, from unrounded per-run rates.

    Attributes:
        percent: 100/(N·M) Σ b over N tasks and M attempts; an attempt that errs counts as 0.
        runs_percent: Rate of each of the M attempts over all tasks.
        num_tasks: N.
        num_errors: Attempts without a verdict.
        domains_percent: Rate of each domain, over the attempts of its tasks.
    """

    percent: float
    runs_percent: tuple[float, ...]
    num_tasks: int
    num_errors: int
    domains_percent: Mapping[str, float] = field(default_factory=dict)

    @property
    def run_std(self) -> float:
        """Sample standard deviation of the per-run rates; 0 for one run."""
        return statistics.stdev(self.runs_percent) if len(self.runs_percent) > 1 else 0.0

    def __str__(self) -> str:
        """`45.6 %`, with ± the sample standard deviation of the runs if there are several."""
        spread = f" ± {self.run_std:.1f}" if len(self.runs_percent) > 1 else ""
        return f"{self.percent:.1f}{spread} %"


def pass_rate(
    attempts: Sequence[Sequence[bool | None]], *, domains: Sequence[str | None] = ()
) -> PassRate:
    """Eq. 21 over `attempts[i][a]`: whether attempt a solved task i, `None` for an error.

    Example: 20/48, 25/42, 22/42, 16/42, 11/27, 8/24, 5/21 and 12/15 by domain pool to
    119/261 = 45.6 %.

    Args:
        attempts: [N][M].
        domains: Domain of each task; `None` for one without, empty if nobody asks.

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
        domains_percent=_by_domain(attempts, domains),
    )


def _by_domain(
    attempts: Sequence[Sequence[bool | None]], domains: Sequence[str | None]
) -> dict[str, float]:
    """Solved attempts of each domain in percent of all of its attempts, by name."""
    pooled: dict[str, list[bool]] = {}
    for row, domain in zip(attempts, domains, strict=bool(domains)):
        if domain is not None:
            pooled.setdefault(domain, []).extend(outcome is True for outcome in row)
    return {name: 100.0 * statistics.fmean(pooled[name]) for name in sorted(pooled)}
