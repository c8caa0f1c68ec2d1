"""One look for all figures: colours that everybody can tell apart, units on every axis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.study.statistics import Estimate

BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, RED, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#D55E00",
    "#7F7F7F",
)
"""Okabe and Ito's palette, told apart with every common colour blindness."""

_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.dpi": 150,
    "savefig.bbox": "tight",
}


def pyplot() -> Any:
    """matplotlib.pyplot without a screen, in the study's style.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            "the figures need the package matplotlib; run: pip install 'arise[study]'"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(_SETTINGS)
    return plt


def save(figure: Any, folder: Path, name: str) -> str:
    """Write a figure as PNG and close it; the file's name."""
    path = folder / f"{name}.png"
    figure.savefig(path)
    pyplot().close(figure)
    return path.name


def line(
    axis: Any, points: Mapping[int, Estimate], *, color: str, name: str, marker: str = "o"
) -> None:
    """Means by step with their 95 % band."""
    steps = list(points)
    axis.plot(
        steps, [p.mean for p in points.values()], color=color, marker=marker, label=name, zorder=3
    )
    if all(p.count > 1 for p in points.values()):
        axis.fill_between(
            steps,
            [p.low for p in points.values()],
            [p.high for p in points.values()],
            color=color,
            alpha=0.15,
            linewidth=0,
        )


def error_of(value: Estimate) -> float:
    """Half width of the interval; 0 where there is none."""
    return value.half_width if value.count > 1 else 0.0


def seeds_note(count: int) -> str:
    """What bars, bands and whiskers mean."""
    return f"{count} seeds, mean and 95 % interval" if count > 1 else "one seed"
