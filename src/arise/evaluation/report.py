"""The figures of a finished evaluation: pass rates by run and domain, errors, tokens, time."""

from __future__ import annotations

import csv
import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arise.evaluation.attempts import Attempt
from arise.evaluation.pass_rate import PassRate, pass_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures of one model on one benchmark.

    Attributes:
        title: Model and harness, for tables.
        rate: Eq. 21; an attempt that erred counts as 0.
        domains: Rates by domain.
        without_errors: The same without the attempts that erred, in percent; `None` if all did.
        errors: Attempts that erred, by boundary.
        listed: Those attempts.
        finish_reasons: How often each.
        totals: Tokens, turns, tool calls and seconds, over all attempts.
    """

    title: str
    rate: PassRate
    domains: Mapping[str, PassRate]
    without_errors: float | None
    errors: Mapping[str, int]
    listed: tuple[Attempt, ...]
    finish_reasons: Mapping[str, int]
    totals: Mapping[str, float]


def make_report(title: str, attempts: Sequence[Attempt], *, num_attempts: int) -> Report:
    """Add up the attempts of a whole evaluation.

    Args:
        title: For tables.
        attempts: All M attempts of all N tasks, in any order.
        num_attempts: M.
    """
    by_task: dict[str, dict[int, Attempt]] = {}
    for attempt in attempts:
        by_task.setdefault(attempt.task_id, {})[attempt.attempt] = attempt
    rows = {
        task_id: [found[number].outcome for number in range(num_attempts)]
        for task_id, found in sorted(by_task.items())
    }
    domain_of = {attempt.task_id: attempt.domain or "(none)" for attempt in attempts}
    domains = sorted(set(domain_of.values()))
    judged = [outcome for row in rows.values() for outcome in row if outcome is not None]
    erred = [attempt for attempt in attempts if attempt.error]
    return Report(
        title=title,
        rate=pass_rate(list(rows.values())),
        domains={
            domain: pass_rate([row for task, row in rows.items() if domain_of[task] == domain])
            for domain in domains
        },
        without_errors=100.0 * statistics.fmean(judged) if judged else None,
        errors=dict(sorted(Counter(attempt.error for attempt in erred).items())),
        listed=tuple(sorted(erred, key=lambda attempt: (attempt.task_id, attempt.attempt))),
        finish_reasons=dict(
            sorted(Counter(a.finish_reason for a in attempts if a.finish_reason).items())
        ),
        totals=_totals(attempts),
    )


def _totals(attempts: Sequence[Attempt]) -> dict[str, float]:
    names = ("num_turns", "prompt_tokens", "completion_tokens", "tool_calls", "tool_errors")
    totals = {name: float(sum(getattr(attempt, name) for attempt in attempts)) for name in names}
    return {**totals, "seconds": round(sum(attempt.seconds for attempt in attempts), 3)}


def as_markdown(report: Report) -> str:
    """The tables that people read: runs, domains, errors, costs."""
    rate, runs = report.rate, len(report.rate.runs_percent)
    spread = f"{statistics.fmean(rate.runs_percent):.1f} ± {rate.run_std:.1f}"
    lines = _table(
        ["Model", *(f"Run {number}" for number in range(1, runs + 1)), "Mean ± Std"],
        [[report.title, *(f"{value:.1f}" for value in rate.runs_percent), spread]],
    )
    lines += ["", "Pass rates in percent by domain, over all attempts:", ""]
    names = list(report.domains)
    lines += _table(
        ["Model", *names, "Overall"],
        [
            [
                report.title,
                *(f"{report.domains[n].percent:.1f}" for n in names),
                f"{rate.percent:.1f}",
            ]
        ],
    )
    num_errors = sum(report.errors.values())
    num_attempts = rate.num_tasks * runs
    shown = "none" if report.without_errors is None else f"{report.without_errors:.1f} %"
    lines += [
        "",
        f"{rate.num_tasks} tasks, {num_attempts} attempts, {num_errors} erred and count as not "
        f"passed; without them: {shown}.",
    ]
    if report.errors:
        counts = [[kind, str(count)] for kind, count in report.errors.items()]
        lines += ["", *_table(["Error", "Attempts"], counts)]
        listed = [
            [a.task_id, str(a.attempt + 1), a.error, " ".join(a.message.split())[:200]]
            for a in report.listed
        ]
        lines += ["", *_table(["Task", "Attempt", "Error", "Message"], listed)]
    per_attempt = [
        [name.replace("_", " "), f"{total:.0f}", f"{total / num_attempts:.1f}"]
        for name, total in report.totals.items()
    ]
    lines += ["", *_table(["", "Total", "An attempt"], per_attempt)]
    reasons = ", ".join(f"{name} {count}" for name, count in report.finish_reasons.items())
    return "\n".join([*lines, "", f"Ends of attempts: {reasons or 'none'}.", ""])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]


def as_json(report: Report) -> dict[str, Any]:
    """Everything, unrounded."""
    return {
        "title": report.title,
        "pass_rate": _rate(report.rate),
        "domains": {name: _rate(rate) for name, rate in report.domains.items()},
        "pass_rate_without_errors": report.without_errors,
        "errors": dict(report.errors),
        "erred_attempts": [dataclasses.asdict(attempt) for attempt in report.listed],
        "finish_reasons": dict(report.finish_reasons),
        "totals": dict(report.totals),
    }


def _rate(rate: PassRate) -> dict[str, Any]:
    return {
        "percent": rate.percent,
        "runs_percent": list(rate.runs_percent),
        "mean_percent": statistics.fmean(rate.runs_percent),
        "sample_std": rate.run_std,
        "num_tasks": rate.num_tasks,
        "num_errors": rate.num_errors,
    }


def write_report(report: Report, attempts: Sequence[Attempt], folder: Path) -> None:
    """`report.md`, `report.json`, and `attempts.csv` with a line for each attempt."""
    (folder / "report.md").write_text(as_markdown(report), encoding="utf-8")
    (folder / "report.json").write_text(
        json.dumps(as_json(report), indent=2, ensure_ascii=False), encoding="utf-8"
    )
    with (folder / "attempts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Attempt)])
        writer.writeheader()
        for attempt in sorted(attempts, key=lambda item: (item.task_id, item.attempt)):
            writer.writerow(dataclasses.asdict(attempt))
