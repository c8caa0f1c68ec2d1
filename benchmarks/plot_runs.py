"""A picture of finished runs: held-out pass rate, behaviour rates, pool.

    python benchmarks/plot_runs.py docs/arise.png \
        "ARISE=outputs/arise/*" "outcome only=outputs/outcome_only/*"

Each argument is a label and a glob of run folders, one per seed. Lines are means over seeds, bands
span the seeds. Needs matplotlib (extra `dev`).
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
SMOOTHING = 5


def curve(run: Path, tag: str) -> dict[int, float]:
    """A scalar by step; empty if the run never logged it."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    if tag not in events.Tags()["scalars"]:
        return {}
    return {point.step: point.value for point in events.Scalars(tag)}


def draw(axis: plt.Axes, runs: Sequence[Path], tag: str, label: str, color: str) -> None:
    """Mean and span over runs; noisy training scalars are averaged over a few steps."""
    curves = [c for c in (curve(run, tag) for run in runs) if c]
    if not curves:
        return
    steps = sorted(set.intersection(*(set(c) for c in curves)))
    values = np.array([[c[step] for step in steps] for c in curves])
    if len(steps) > 2 * SMOOTHING:
        kernel = np.ones(SMOOTHING)
        norm = np.convolve(np.ones(len(steps)), kernel, "same")
        values = np.array([np.convolve(row, kernel, "same") / norm for row in values])
    axis.plot(
        steps, values.mean(0), color=color, label=label, marker="o" if len(steps) < 12 else ""
    )
    if len(curves) > 1:
        axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.2, lw=0)


def main() -> None:
    target, *arguments = sys.argv[1:]
    groups = [
        (label, [Path(path) for path in sorted(glob.glob(pattern))])
        for label, _, pattern in (argument.partition("=") for argument in arguments)
    ]
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for (label, runs), color in zip(groups, COLORS, strict=False):
        draw(axes[0], runs, "evaluation/pass_rate", label, color)
    first = groups[0][1]
    for name, color in zip(
        ("understanding", "execution", "verification", "debugging", "efficiency"),
        COLORS,
        strict=True,
    ):
        draw(axes[1], first, f"rubric/pass_rate_{name}", name, color)
    draw(axes[2], first, "pool/size", "pairs in the pool", COLORS[0])
    draw(axes[2], first, "pool/active_skills", "skills switched on", COLORS[1])
    axes[0].set(title="Held-out pass rate, no skills", ylim=(0, 1))
    axes[1].set(title=f"Rubric pass rate by capability ({groups[0][0]})", ylim=(0, 1))
    axes[2].set(title=f"Pool ({groups[0][0]})", ylim=(0, None))
    for axis in axes:
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    main()
