"""Figures 5 and 6 of the paper from a study's runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arise.study.collect import adaptive_choices
from arise.study.data import StudyData, label
from arise.study.style import BLUE, pyplot, save
from arise.types import Capability

_MAX_TYPES = 8
_MAX_PANELS = 3
_STAGES = ("Early", "Middle", "Late")


def figure_5(data: StudyData, folder: Path) -> str | None:
    """Where adaptive choices went, by task type and capability, in each stage.

    Cells are shares of a stage's adaptive choices over all seeds; blank ones had none. A choice
    is drawn for one (task type, capability) pair; discovery is left out.
    """
    stages: list[Counter[tuple[str, str]]] = []
    for run in data.of(data.method):
        for number, counts in enumerate(adaptive_choices(run, stage_steps=data.stage_steps)):
            if number == len(stages):
                stages.append(Counter())
            stages[number].update(counts)
    if not any(stages):
        return None
    import numpy as np

    plt = pyplot()
    tags, tables = _shares(stages)
    top = max(float(np.nanmax(table)) for table in tables if not np.isnan(table).all())
    figure, axes = plt.subplots(
        1,
        len(tables),
        figsize=(3.7 * len(tables) + 1.2, 0.42 * len(tags) + 1.9),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for number, (axis, table) in enumerate(zip(axes[0], tables, strict=True)):
        image = _heat_map(plt, axis, table, top)
        first = number * data.stage_steps + 1
        name = _STAGES[number] if len(tables) == len(_STAGES) else f"Stage {number + 1}"
        total = sum(stages[number].values())
        axis.set_title(
            f"{name}: iterations {first} to {first + data.stage_steps - 1}\n({total} choices)",
            fontsize=10,
        )
    axes[0][0].set_yticks(range(len(tags)), tags)
    figure.colorbar(image, ax=axes[0].tolist(), label="share of the stage's adaptive choices (%)")
    figure.suptitle(f"Adaptive sampling of {label(data.method)}", fontsize=11, fontweight="bold")
    return save(figure, folder, "figure_5")


def _shares(stages: Sequence[Counter[tuple[str, str]]]) -> tuple[list[str], list[Any]]:
    """The commonest task types, and per stage float[T, 5] shares in percent; NaN for none."""
    import numpy as np

    totals: Counter[str] = Counter()
    for counts in stages:
        for (tag, _), count in counts.items():
            totals[tag] += count
    tags = sorted(tag for tag, _ in totals.most_common(_MAX_TYPES))
    tables = []
    for counts in stages:
        table = np.full((len(tags), len(Capability)), np.nan)
        for row, tag in enumerate(tags):
            for column, capability in enumerate(Capability):
                if counts[tag, capability.value]:
                    share = counts[tag, capability.value] / sum(counts.values())
                    table[row, column] = 100.0 * share
        tables.append(table)
    return tags, tables


def _heat_map(plt: Any, axis: Any, table: Any, top: float) -> Any:
    """One stage's cells with their numbers; the image, for the colour bar."""
    import numpy as np

    image = axis.imshow(table, cmap="cividis_r", vmin=0, vmax=top, aspect="auto")
    axis.grid(visible=False)
    axis.set_xticks(range(len(Capability)), [c.value for c in Capability], rotation=35)
    plt.setp(axis.get_xticklabels(), ha="right", rotation_mode="anchor")
    for row, column in zip(*np.nonzero(~np.isnan(table)), strict=True):
        value = table[row, column]
        axis.text(
            column,
            row,
            f"{value:.0f}" if value >= 1 else "<1",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if value > 0.55 * top else "black",
        )
    return image


def figure_6(data: StudyData, folder: Path) -> str | None:
    """Behaviour after retirement: the rate at retirement and on the same tasks later, no skills.

    Three rubrics, of different titles if there are so many; the report's table has all of them.
    """
    rows = [
        (run.seed, row)
        for run in data.of(data.method)
        for row in data.probe(run).get("retention", [])
        if any(later["percent"] is not None for later in row["later"].values())
    ]
    if not rows:
        return None
    chosen: list[tuple[int, dict[str, Any]]] = []
    for wants_new in (True, False):
        for entry in sorted(rows, key=lambda entry: (-len(entry[1]["later"]), entry[0])):
            is_new = entry[1]["title"] not in {row["title"] for _, row in chosen}
            if len(chosen) < _MAX_PANELS and is_new is wants_new and entry not in chosen:
                chosen.append(entry)
    plt = pyplot()
    figure, axes = plt.subplots(
        1,
        len(chosen),
        figsize=(3.9 * len(chosen), 3.5),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, (seed, row) in zip(axes[0], chosen, strict=True):
        _retained(axis, seed, row)
    axes[0][0].set_ylabel("rubric pass rate (%)")
    axes[0][0].legend(loc="lower left")
    figure.suptitle("Behaviour after retirement", fontsize=11, fontweight="bold")
    return save(figure, folder, "figure_6")


def _retained(axis: Any, seed: int, row: dict[str, Any]) -> None:
    later = {
        int(step): own["percent"]
        for step, own in row["later"].items()
        if own["percent"] is not None
    }
    steps, values = [row["step"], *later], [row["percent"], *later.values()]
    axis.plot(steps, values, color=BLUE, linewidth=1.2, zorder=2)
    axis.plot(
        steps[:1],
        values[:1],
        "D",
        mfc="white",
        mec=BLUE,
        markersize=7,
        zorder=3,
        label="training window at retirement",
    )
    axis.plot(
        steps[1:],
        values[1:],
        "o",
        color=BLUE,
        markersize=6,
        zorder=3,
        label="same tasks, no skills",
    )
    title = str(row["title"])
    words, cut = title.split(), len(title.split()) // 2
    axis.set_title(f"{' '.join(words[:cut])}\n{' '.join(words[cut:])} (seed {seed})", fontsize=9.5)
    axis.set(xlabel="iteration", ylim=(0, 104), xticks=steps)
