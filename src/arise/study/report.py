"""The report: runs.csv, study.json, figures, and report.md with tables."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arise.study.collect import RunData
from arise.study.data import StudyData, label
from arise.study.figures import figure_3a, figure_3b, figure_4
from arise.study.figures_more import figure_5, figure_6
from arise.study.statistics import Comparison, Estimate, estimate

_COST = (
    ("judge/requests", "judge requests"),
    ("judge/prompt_tokens", "judge tokens in"),
    ("judge/completion_tokens", "judge tokens out"),
    ("judge/cost", "judge cost"),
    ("reflection/requests", "reflection requests"),
    ("reflection/cost", "reflection cost"),
)
_FIGURES = (
    ("Figure 3a: final pass rates", figure_3a),
    ("Figure 3b: pass rate over training", figure_3b),
    ("Figure 4: pool, feedback, exploration", figure_4),
    ("Figure 5: where adaptive sampling goes", figure_5),
    ("Figure 6: behaviour after retirement", figure_6),
)


def write_report(data: StudyData, folder: Path) -> Path:
    """Write everything; the path of `report.md`.

    Args:
        data: The finished runs.
        folder: Where the report goes; older files of the same names are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(data, folder / "runs.csv")
    summary = json.dumps(summarize(data), indent=1, allow_nan=False)
    (folder / "study.json").write_text(summary + "\n", encoding="utf-8")
    figures = [(title, draw(data, folder)) for title, draw in _FIGURES]
    path = folder / "report.md"
    text = "\n".join(_sections(data, [(t, name) for t, name in figures if name is not None]))
    path.write_text(text + "\n", encoding="utf-8")
    return path


def write_csv(data: StudyData, path: Path) -> None:
    """One line for each evaluation of each run and task set."""
    fields = ("experiment", "seed", "task_set", "step", "percent", "run_std", "num_tasks", "errors")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(fields)
        for run in (run for runs in data.runs.values() for run in runs):
            for entry in run.results:
                sets = {"held-out": entry, **entry.get("extra", {})}
                for name, own in sets.items():
                    spread = estimate(own["runs_percent"]).std
                    numbers = (own["percent"], spread, own["num_tasks"], own["num_errors"])
                    writer.writerow([run.experiment, run.seed, name, entry["step"], *numbers])


def summarize(data: StudyData) -> dict[str, Any]:
    """The study in numbers; what is not defined is `null`."""
    return {
        "method": data.method,
        "baseline": data.baseline,
        "runs": {
            name: [{"seed": run.seed, "folder": str(run.folder)} for run in runs]
            for name, runs in data.runs.items()
        },
        "final": {
            task_set: {name: _plain(asdict(data.final(name, task_set))) for name in data.runs}
            for task_set in data.task_sets
        },
        "method_minus": {
            task_set: {
                name: _plain(asdict(comparison))
                for name, comparison in data.comparisons(task_set).items()
            }
            for task_set in data.task_sets
        },
        "steps_to_baseline": {
            task_set: {
                str(seed): {"step": step, "of": of}
                for seed, (step, of) in data.steps_to_baseline(task_set).items()
            }
            for task_set in data.task_sets
        },
        "per_step": {
            name: {key: _plain(asdict(value)) for key, value in _costs(runs)}
            for name, runs in data.runs.items()
        },
        "retention": [
            {"seed": run.seed, **row}
            for run in data.of(data.method)
            for row in data.probe(run).get("retention", [])
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(own) for key, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value


def _costs(runs: list[RunData]) -> Iterator[tuple[str, Estimate]]:
    """Seconds and judge cost of an iteration over seeds, where known."""
    readings = [("seconds", [run.seconds_per_step for run in runs])]
    readings += [(name, [run.per_step(tag) for run in runs]) for tag, name in _COST]
    for name, values in readings:
        known = [value for value in values if value is not None]
        if known:
            yield name, estimate(known)


def _sections(data: StudyData, figures: list[tuple[str, str]]) -> Iterator[str]:
    yield "# Study\n"
    yield (
        f"Compared with: {label(data.method)}. All figures are of the last policy, without skills "
        "in the prompt. ± is the sample standard deviation over seeds, [ ] a 95 % interval "
        "(Student's t), p a two-sided paired t test, p(Holm) the same corrected for the number of "
        "comparisons, p(signs) an exact sign-flip test.\n"
    )
    for task_set in data.task_sets:
        yield f"## Final pass rate: {task_set}\n"
        yield from _finals(data, task_set)
        yield from _efficiency(data, task_set)
    for title, name in figures:
        yield f"## {title}\n\n![{title}]({name})\n"
    yield from _retention(data)
    yield "## Table 11: time and judge of an iteration\n"
    yield from _times(data)
    yield "Every evaluation is in [runs.csv](runs.csv), the tables in [study.json](study.json)."


def _finals(data: StudyData, task_set: str) -> Iterator[str]:
    comparisons = data.comparisons(task_set)
    yield "| experiment | seeds | pass rate, % | method minus it, points | p | p(Holm) | p(signs) |"
    yield "|---|---|---|---|---|---|---|"
    order = sorted(data.runs, key=lambda name: -data.final(name, task_set).mean)
    for name in order:
        final = data.final(name, task_set)
        spread = f" ± {final.std:.1f}" if final.count > 1 else ""
        cells = [f"{final.mean:.1f}{spread}{_interval(final)}"]
        comparison = comparisons.get(name)
        cells += ["", "", "", ""] if comparison is None else _compared(comparison)
        yield f"| {label(name)} | {final.count} | " + " | ".join(cells) + " |"
    yield ""


def _compared(comparison: Comparison) -> list[str]:
    difference = comparison.difference
    return [
        f"{difference.mean:+.1f}{_interval(difference)}",
        *(_p(value) for value in (comparison.p_t, comparison.p_holm, comparison.p_signs)),
    ]


def _interval(value: Estimate) -> str:
    return "" if math.isnan(value.low) else f" [{value.low:.1f}, {value.high:.1f}]"


def _p(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _efficiency(data: StudyData, task_set: str) -> Iterator[str]:
    steps = data.steps_to_baseline(task_set)
    if not steps:
        return
    reached = [(seed, step, of) for seed, (step, of) in steps.items() if step is not None]
    each = ", ".join(
        f"{'never' if step is None else f'{step:.0f}'} of {of} (seed {seed})"
        for seed, (step, of) in sorted(steps.items())
    )
    yield (
        f"{label(data.method)} reaches the final rate of {label(data.baseline)} on the same "
        f"seed at iteration: {each}."
    )
    if len(reached) == len(steps):
        ratio = estimate([step / of for _, step, of in reached])
        yield f"That is {ratio.mean:.2f} of its iterations in the mean{_shares(ratio)}."
    else:
        yield f"It gets there on {len(reached)} of {len(steps)} seeds."
    yield ""


def _shares(value: Estimate) -> str:
    return "" if math.isnan(value.low) else f" [{value.low:.2f}, {value.high:.2f}]"


def _retention(data: StudyData) -> Iterator[str]:
    rows = [
        (run.seed, row)
        for run in data.of(data.method)
        for row in data.probe(run).get("retention", [])
    ]
    if not rows:
        return
    yield "## Retired rubrics\n"
    yield "| seed | rubric | retired at | then, % | later on the same tasks, no skills |"
    yield "|---|---|---|---|---|"
    for seed, row in rows:
        later = ", ".join(
            f"step {step}: {own['percent']:.1f} %"
            for step, own in row["later"].items()
            if own["percent"] is not None
        )
        cells = (seed, row["title"], row["step"], f"{row['percent']:.1f}", later or "–")
        yield "| " + " | ".join(map(str, cells)) + " |"
    yield ""


def _times(data: StudyData) -> Iterator[str]:
    table = {name: dict(_costs(runs)) for name, runs in data.runs.items()}
    columns = list(dict.fromkeys(key for own in table.values() for key in own))
    if not columns:
        yield "No run has logged times.\n"
        return
    base = table.get(data.baseline, {}).get("seconds")
    yield "| experiment | " + " | ".join(columns) + f" | seconds over {label(data.baseline)}'s |"
    yield "|---" * (len(columns) + 2) + "|"
    for name, own in table.items():
        cells = [_number(own[key].mean) if key in own else "–" for key in columns]
        has_both = base is not None and "seconds" in own
        cells.append(f"{own['seconds'].mean / base.mean:.3f}" if has_both and base else "–")
        yield f"| {label(name)} | " + " | ".join(cells) + " |"
    yield (
        "\nMeans over iterations and seeds; evaluation and the first iteration are left out of the "
        "seconds. Runs that shared a machine with other work have no comparable times: "
        "`benchmarks/overhead.py` measures the ratio.\n"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
