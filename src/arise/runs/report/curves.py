"""Scalars of a run by name: from its logger, or else worked out from its records."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Curves = dict[str, dict[int, float]]
"""Value by step, by name; only finite values."""


def logged_curves(run: Path) -> Curves:
    """What TensorBoard's or the CSV logger's files hold; a later value of a step replaces."""
    curves: Curves = {}
    if any((run / "tensorboard").glob("events.out.tfevents.*")):
        curves = _from_tensorboard(run / "tensorboard")
    for path in sorted(run.rglob("metrics.csv")):
        _read_csv(path, curves)
    return {name: dict(sorted(points.items())) for name, points in curves.items() if points}


def _from_tensorboard(folder: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sizes = {"scalars": 0, "images": 1, "tensors": 1, "histograms": 1, "audio": 1}
    events = EventAccumulator(str(folder), size_guidance=sizes)
    events.Reload()
    return {
        tag: {
            point.step: float(point.value)
            for point in events.Scalars(tag)
            if math.isfinite(point.value)
        }
        for tag in events.Tags()["scalars"]
    }


def _read_csv(path: Path, curves: Curves) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not (row.get("step") or "").isdecimal():
                continue
            for name, text in row.items():
                if "/" not in (name or "") or not text:
                    continue
                value = float(text)
                if math.isfinite(value):
                    curves.setdefault(name, {})[int(row["step"])] = value


def recorded_scalars(slots: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Scalars of a step that its records tell, under the names of the logger."""
    survivors = [slot for slot in slots if "failure" not in slot]
    if not survivors:
        return {}
    count = len(survivors)
    groups: dict[str, list[bool]] = {}
    for slot in survivors:
        groups.setdefault(slot["task_id"], []).append(slot["task_reward"] >= 1.0)
    return {
        "reward/pass_rate": sum(map(sum, groups.values())) / count,
        "reward/all_fail_group_share": sum(not any(g) for g in groups.values()) / len(groups),
        "reward/all_pass_group_share": sum(map(all, groups.values())) / len(groups),
        "rollout/generated_tokens_mean": sum(s["num_generated_tokens"] for s in survivors) / count,
        "rollout/turns_mean": sum(len(slot["turns"]) for slot in survivors) / count,
    }
