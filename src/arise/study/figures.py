"""Figures 3 and 4 of the paper from a study's runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arise.study.collect import mean_curve, pool_counts, windows
from arise.study.data import StudyData, estimates_by_step, label
from arise.study.statistics import estimate
from arise.study.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    error_of,
    line,
    pyplot,
    save,
    seeds_note,
)


def figure_3a(data: StudyData, folder: Path) -> str | None:
    """Final pass rate of every experiment, the method first; unseen families beside it."""
    plt = pyplot()
    sets = data.task_sets
    names = sorted(data.runs, key=lambda name: data.final(name).mean)
    figure, axes = plt.subplots(
        1,
        len(sets),
        figsize=(4.6 * len(sets) + 1.6, 0.42 * len(names) + 1.5),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, task_set in zip(axes[0], sets, strict=True):
        values = [data.final(name, task_set) for name in names]
        colors = [BLUE if name == data.method else _color(name) for name in names]
        axis.barh(
            range(len(names)),
            [v.mean for v in values],
            xerr=[error_of(v) for v in values],
            color=colors,
            height=0.68,
            error_kw={"elinewidth": 1.1, "capsize": 3, "ecolor": "#333333"},
        )
        for row, value in enumerate(values):
            axis.text(
                max(0.0, value.mean) + error_of(value) + 1.0,
                row,
                f"{value.mean:.1f}",
                va="center",
                fontsize=9,
            )
        top = max(v.mean + error_of(v) for v in values)
        axis.set(title=_set_title(task_set), xlabel="final pass rate (%)", xlim=(0, top * 1.15 + 4))
        axis.set_ylim(-0.6, len(names) - 0.4)
        axis.grid(visible=False, axis="y")
    axes[0][0].set_yticks(range(len(names)), [label(name) for name in names])
    figure.suptitle(f"Ablations, baselines and controls ({_seeds(data)})", fontsize=11)
    return save(figure, folder, "figure_3a")


def figure_3b(data: StudyData, folder: Path) -> str | None:
    """Pass rate over training: the method and the baseline."""
    pair = [name for name in (data.method, data.baseline) if data.of(name)]
    if len(pair) < 2:
        return None
    plt = pyplot()
    sets = data.task_sets
    figure, axes = plt.subplots(
        1, len(sets), figsize=(4.8 * len(sets), 3.6), squeeze=False, layout="constrained"
    )
    for axis, task_set in zip(axes[0], sets, strict=True):
        for name, color, marker in zip(pair, (BLUE, GREY), ("o", "s"), strict=True):
            points = estimates_by_step([run.curve(task_set) for run in data.of(name)])
            line(axis, points, color=color, name=label(name), marker=marker)
        level = data.final(data.baseline, task_set).mean
        axis.axhline(
            level,
            color=GREY,
            linewidth=1.2,
            linestyle=":",
            label=f"final rate of {label(data.baseline)}",
        )
        axis.set(
            title=_set_title(task_set),
            xlabel="iteration",
            ylabel="pass rate without skills (%)",
            ylim=(0, None),
        )
        axis.legend(loc="upper left")
    figure.suptitle(f"Training efficiency ({_seeds(data)})", fontsize=11)
    return save(figure, folder, "figure_3b")


def figure_4(data: StudyData, folder: Path) -> str | None:
    """The pool, rubric reward and task pass rate by window, and all-fail groups."""
    runs = data.of(data.method)
    if not any(run.events for run in runs):
        return None
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 3.7), layout="constrained")
    _pool(axes[0], data)
    _windows(axes[1], data)
    _all_fail(axes[2], data)
    figure.suptitle(
        f"Behavioural feedback and exploration of {label(data.method)} ({_seeds(data)})",
        fontsize=11,
    )
    return save(figure, folder, "figure_4")


def _pool(axis: Any, data: StudyData) -> None:
    runs = data.of(data.method)
    counts = [pool_counts(run) for run in runs]
    curves = {
        kind: mean_curve([own[kind] for own in counts])
        for kind in ("added", "retired", "in the pool")
    }
    interval = runs[0].update_interval
    steps = list(curves["added"])
    for kind, color, shift in (("added", SKY, -0.2), ("retired", ORANGE, 0.2)):
        axis.bar(
            [step + shift * interval for step in steps],
            [curves[kind][step] for step in steps],
            width=0.38 * interval,
            color=color,
            label=kind,
        )
    axis.plot(steps, list(curves["in the pool"].values()), color=BLUE, marker="o", label="active")
    axis.set(title="(a) Rubrics", xlabel="iteration", ylabel="rubrics, mean over seeds")
    axis.set_ylim(0, max(1.0, *curves["in the pool"].values()) * 1.35)
    axis.legend(ncols=3, loc="upper center", columnspacing=1.2)


def _windows(axis: Any, data: StudyData) -> None:
    own = [windows(run) for run in data.of(data.method)]
    for kind, color, marker in (("rubric reward", GREEN, "o"), ("task pass rate", BLUE, "s")):
        points = estimates_by_step([curves[kind] for curves in own])
        line(axis, points, color=color, name=kind, marker=marker)
    interval = data.of(data.method)[0].update_interval
    axis.set(
        title="(b) Feedback",
        xlabel=f"iteration, end of a window of {interval}",
        ylabel="passes in training rollouts (%)",
        ylim=(0, 100),
    )
    axis.legend(loc="upper left")


def _all_fail(axis: Any, data: StudyData) -> None:
    shown = 0
    probed = {
        name: [own for run in runs if (own := data.probe(run).get("all_fail"))]
        for name, runs in data.runs.items()
    }
    probed = {name: values for name, values in probed.items() if values}
    colors = (BLUE, RED, GREEN, ORANGE)
    for number, (name, rows) in enumerate(probed.items()):
        steps = sorted({int(step) for row in rows for step in row})
        values = [
            estimate([row[str(step)] for row in rows if row.get(str(step)) is not None])
            for step in steps
        ]
        width = 0.8 / len(probed)
        axis.bar(
            [place + (number - (len(probed) - 1) / 2) * width for place in range(len(steps))],
            [v.mean for v in values],
            yerr=[error_of(v) for v in values],
            width=width * 0.92,
            color=colors[number % len(colors)],
            label=label(name),
            error_kw={"elinewidth": 1.1, "capsize": 3, "ecolor": "#333333"},
        )
        axis.set_xticks(range(len(steps)), [str(step) for step in steps])
        shown += 1
    axis.set(
        title="(c) All-fail groups, fixed tasks",
        xlabel="policy after iteration",
        ylabel="tasks with no success in a group (%)",
    )
    if shown:
        axis.set_ylim(0, axis.get_ylim()[1] * 1.25)
        axis.legend(loc="upper right")
    else:
        axis.text(0.5, 0.5, "not probed", ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])


def _color(experiment: str) -> str:
    kind = experiment.partition("/")[0]
    return {"ablation": SKY, "baseline": ORANGE, "control": GREEN}.get(kind, GREY)


def _set_title(task_set: str) -> str:
    return "Held-out tasks" if task_set == "held-out" else f"{task_set.capitalize()} families"


def _seeds(data: StudyData) -> str:
    return seeds_note(min(len(runs) for runs in data.runs.values()))
