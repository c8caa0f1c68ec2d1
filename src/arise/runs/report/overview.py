"""What the report knows about a run as a whole: how it stands, its curves, its pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arise.runs.catalogue import read_config, read_results, recorded_steps, summarize
from arise.runs.folder import RunFolder
from arise.runs.pool_story import pool_story, read_pool
from arise.runs.report.curves import logged_curves
from arise.runs.story import story_line

_SIGNIFICANT = 6
_BOUNDS = {
    "ratio_low": "algorithm.ratio_low",
    "ratio_high": "algorithm.ratio_high",
    "dual_clip": "algorithm.dual_clip",
    "eta_low": "rubrics.eta_low",
    "eta_high": "rubrics.eta_high",
    "update_interval": "rubrics.update_interval",
}


def overview(
    run: Path, scalars: Mapping[int, Mapping[str, float]], stories: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything but trajectories and evidence.

    Args:
        run: The run's folder.
        scalars: By step, what the records tell; used where the logger has nothing.
        stories: Of `pair_stories`.
    """
    config = read_config(run)
    curves = logged_curves(run)
    held_out = read_results(run)
    for result in held_out:
        curves.setdefault("evaluation/pass_rate", {})[result["step"]] = result["percent"] / 100.0
    for step, values in scalars.items():
        for name, value in values.items():
            curves.setdefault(name, {}).setdefault(step, value)
    return {
        "run": summarize(run).to_dict(),
        "config": OmegaConf.to_yaml(config),
        "bounds": {name: OmegaConf.select(config, key) for name, key in _BOUNDS.items()},
        "processes": _processes(config),
        "held_out": held_out,
        "curves": {
            name: {"steps": sorted(points), "values": [_short(points[s]) for s in sorted(points)]}
            for name, points in sorted(curves.items())
        },
        "pool": [{**pair, "events": list(_plain(pair["events"]))} for pair in stories],
        "rejections": _rejections(run),
        "steps": recorded_steps(run),
    }


def evidence_blocks(stories: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """A block for each pair, with its name: the evidence of each of its events, in order."""
    for pair in stories:
        yield f"evidence-{pair['pair_id']}", [event["evidence"] for event in pair["events"]]


def pair_stories(run: Path) -> list[dict[str, Any]]:
    """Every pair's life with the evidence; none if the run has no pool."""
    if not RunFolder(path=run).pool_log.is_file():
        return []
    return pool_story(run, until_step=None, pair_id=None)


def _plain(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    dropped = ("evidence", "task_ids", "pair_id")
    for event in events:
        yield {key: value for key, value in event.items() if key not in dropped}


def _rejections(run: Path) -> list[dict[str, Any]]:
    """Proposals that were refused and generations that failed, as sentences."""
    if not RunFolder(path=run).pool_log.is_file():
        return []
    told = ((event, story_line(event)) for event in read_pool(run) if "pair_id" not in event)
    return [{"step": event["step"], "text": line} for event, line in told if line is not None]


def _processes(config: DictConfig) -> int:
    devices = OmegaConf.select(config, "trainer.devices")
    nodes = OmegaConf.select(config, "trainer.num_nodes")
    return int(devices or 1) * int(nodes or 1) if isinstance(devices, int | None) else 1


def _short(value: float) -> float:
    return float(f"{value:.{_SIGNIFICANT}g}")
