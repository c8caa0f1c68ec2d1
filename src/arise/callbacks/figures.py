"""Two pictures of a run in the style of the paper's Figures 4 and 5."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arise.types import Capability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW_STEPS = 10
"""Steps of a window, as in the paper's Figure 4."""
NUM_STAGES = 3
"""Early, middle and late."""

_COLORS = ("#0072B2", "#D55E00", "#009E73")
_STAGES = ("early", "middle", "late")

Point = Mapping[str, float]
"""What an iteration gives to the pictures: `step` and scalars by name."""


def windows(history: Sequence[Point], name: str) -> dict[int, float]:
    """Mean of a scalar by window's last step; windows without a value are left out.

    Example: pass rates 0.2 and 0.4 at steps 9 and 10, 0.5 at 11 give {10: 0.3, 20: 0.5}.
    """
    values: dict[int, list[float]] = {}
    for point in history:
        if name in point:
            end = -(-int(point["step"]) // WINDOW_STEPS) * WINDOW_STEPS
            values.setdefault(end, []).append(point[name])
    return {end: sum(own) / len(own) for end, own in sorted(values.items())}


def stage_of(step: int, max_steps: int) -> int:
    """Third of the run that a step belongs to, from 0.

    Example: of 150 steps, 50 is in the first and 51 in the second.
    """
    return min(NUM_STAGES - 1, (step - 1) * NUM_STAGES // max_steps)


def feedback_figure(history: Sequence[Point], max_steps: int) -> Figure:
    """Pool counts, rubric reward with pass rate, all-fail share by stage (Fig. 4)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    counts, rates, fails = figure.subplots(1, 3)
    totals: Counter[str] = Counter()
    lines: dict[str, list[tuple[float, float]]] = {"active": [], "added": [], "retired": []}
    for point in history:
        totals["added"] += int(point.get("pool/created", 0))
        totals["retired"] += int(point.get("pool/retired", 0))
        totals["active"] = int(point.get("pool/size", 0))
        for name, line in lines.items():
            line.append((point["step"], totals[name]))
    for (name, line), color in zip(lines.items(), _COLORS, strict=True):
        counts.step(*zip(*line, strict=True), where="post", label=name, color=color)
    counts.set_title("rubrics")
    for (scalar, name), color in zip(
        (("rubric/mean_reward", "rubric reward"), ("reward/pass_rate", "task pass rate")),
        _COLORS,
        strict=False,
    ):
        values = windows(history, scalar)
        rates.plot(list(values), list(values.values()), marker="o", label=name, color=color)
    rates.set_title(f"means of {WINDOW_STEPS} steps")
    rates.set_ylim(0.0, 1.0)
    shares = _by_stage(history, "reward/all_fail_group_share", max_steps)
    fails.bar([_STAGES[stage] for stage in shares], list(shares.values()), color=_COLORS[0])
    fails.set_title("groups in which every rollout fails")
    for axes in (counts, rates):
        axes.set_xlabel("step")
        axes.legend(frameon=False)
    return _plain(figure)


def _by_stage(history: Sequence[Point], name: str, max_steps: int) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for point in history:
        if name in point:
            values.setdefault(stage_of(int(point["step"]), max_steps), []).append(point[name])
    return {stage: sum(own) / len(own) for stage, own in sorted(values.items())}


def sampling_figure(choices: Sequence[Mapping[tuple[str, str], int]]) -> Figure:
    """Share of adaptive choices by task type and capability in each stage (Fig. 5).

    Args:
        choices: Times that (task type, capability) was chosen, by stage. A pair that never was
            stays blank.
    """
    import numpy as np
    from matplotlib.figure import Figure

    tags = sorted({tag for stage in choices for tag, _ in stage})
    names = [capability.value for capability in Capability]
    figure = Figure(figsize=(12, 1.6 + 0.26 * len(tags)), layout="constrained")
    axes = figure.subplots(1, NUM_STAGES, sharey=True)
    tables = []
    for stage in choices:
        total = sum(stage.values())
        table = np.full((len(tags), len(names)), np.nan)
        for (tag, capability), count in stage.items():
            table[tags.index(tag), names.index(capability)] = count / total
        tables.append(table)
    top = max((np.nanmax(t) for t in tables if not np.isnan(t).all()), default=1.0)
    image: Any = None
    for one, table, name in zip(axes, tables, _STAGES, strict=True):
        image = one.imshow(table, cmap="Blues", vmin=0.0, vmax=top, aspect="auto")
        one.set_title(name)
        one.set_xticks(range(len(names)), names, rotation=35, ha="right")
        one.set_yticks(range(len(tags)), tags)
    figure.colorbar(image, ax=axes, label="share of adaptive choices")
    return _plain(figure)


def _plain(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure
