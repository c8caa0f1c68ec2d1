"""What a run left, as numbers: evaluations, times, judge cost, pool events, task choices."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from arise.rubrics.events import Event, EventType, read_events
from arise.runs.catalogue import read_results, recorded_steps
from arise.runs.folder import RunFolder
from arise.runs.records import read_records, trajectory_file

Curve = dict[int, float]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One finished run; everything is read when it is first asked for.

    Attributes:
        experiment: Name below `configs/experiment/`.
        seed: The run's seed.
        folder: The run's folder.
        update_interval: Δ_pool, the length of a window.
        config: The run's configuration as this version composes it; `None` takes the one that the
            run has kept.
    """

    experiment: str
    seed: int
    folder: Path
    update_interval: int
    config: DictConfig | None = None

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """Evaluations as `evaluations.jsonl` holds them, by step."""
        return read_results(self.folder)

    @cached_property
    def task_sets(self) -> list[str]:
        """`held-out`, then the further sets that were evaluated."""
        return ["held-out", *(self.results[-1].get("extra", {}) if self.results else {})]

    def curve(self, task_set: str = "held-out") -> Curve:
        """Pass rate in percent by step."""
        if task_set == "held-out":
            return {entry["step"]: entry["percent"] for entry in self.results}
        return {
            entry["step"]: entry["extra"][task_set]["percent"]
            for entry in self.results
            if task_set in entry.get("extra", {})
        }

    def final(self, task_set: str = "held-out") -> float:
        """Pass rate of the last policy in percent."""
        curve = self.curve(task_set)
        return curve[max(curve)]

    @cached_property
    def scalars(self) -> dict[str, Curve]:
        """TensorBoard's scalars by tag and step."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = self.folder / "tensorboard"
        if not folder.is_dir():
            return {}
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        return {
            tag: {point.step: point.value for point in events.Scalars(tag)}
            for tag in events.Tags()["scalars"]
        }

    @cached_property
    def events(self) -> list[Event]:
        """Events of the pool; none without one."""
        path = RunFolder(path=self.folder).pool_log
        return read_events(path, key="pool") if path.is_file() else []

    @property
    def seconds_per_step(self) -> float | None:
        """Mean seconds of an iteration, evaluation and the first iteration left out."""
        whole = self.scalars.get("time/iteration_s", {})
        evaluation = self.scalars.get("time/evaluation_s", {})
        seconds = [s - evaluation.get(step, 0.0) for step, s in sorted(whole.items())][1:]
        return statistics.fmean(seconds) if seconds else None

    def per_step(self, tag: str) -> float | None:
        """Mean of a scalar over iterations; `None` if it was never logged."""
        values = self.scalars.get(tag)
        return statistics.fmean(values.values()) if values else None


def pool_counts(run: RunData) -> dict[str, Curve]:
    """Figure 4a: pairs added and retired at each update, and in the pool after it."""
    size = 0
    counts: dict[str, Curve] = {"added": {}, "retired": {}, "in the pool": {}}
    by_step: dict[int, Counter[str]] = {}
    for event in run.events:
        by_step.setdefault(event["step"], Counter())[event["type"]] += 1
    for step in range(0, max(by_step, default=0) + 1, run.update_interval):
        kinds = by_step.get(step, Counter())
        added = kinds[EventType.CREATED] + kinds[EventType.IMPORTED]
        size += added - kinds[EventType.RETIRED]
        if step or added:
            counts["added"][step] = added
            counts["retired"][step] = kinds[EventType.RETIRED]
            counts["in the pool"][step] = size
    return counts


def windows(run: RunData) -> dict[str, Curve]:
    """Figure 4b: mean rubric reward and task pass rate of each window, in percent, by its end.

    The mean rubric reward is passes over valid applicable verdicts, all rubrics pooled.
    """
    passes: Counter[int] = Counter()
    applicable: Counter[int] = Counter()
    for event in run.events:
        passes[event["step"]] += event.get("num_passes", 0)
        applicable[event["step"]] += event.get("num_applicable", 0)
    rubric = {s: 100.0 * passes[s] / n for s, n in sorted(applicable.items()) if n}
    task: dict[int, list[float]] = {}
    for step, rate in run.scalars.get("reward/pass_rate", {}).items():
        end = -(-step // run.update_interval) * run.update_interval
        task.setdefault(end, []).append(rate)
    return {
        "rubric reward": rubric,
        "task pass rate": {end: 100.0 * statistics.fmean(rates) for end, rates in task.items()},
    }


def adaptive_choices(run: RunData, *, stage_steps: int) -> list[Counter[tuple[str, str]]]:
    """Figure 5: adaptive choices by (task type, capability) in each stage, discovery left out."""
    stages: dict[int, Counter[tuple[str, str]]] = {}
    folder = RunFolder(path=run.folder).trajectories
    for step in recorded_steps(run.folder):
        counts = stages.setdefault((step - 1) // stage_steps, Counter())
        for record in read_records(trajectory_file(folder, step)):
            if record["rollout"] == 0 and record["sampled_by"] == "adaptive":
                counts[record["sampled_tag"], record["sampled_capability"]] += 1
    return [stages[stage] for stage in sorted(stages)]


def mean_curve(curves: list[Mapping[int, float]]) -> Curve:
    """Mean over runs at the steps that all of them have."""
    if not curves:
        return {}
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {step: statistics.fmean(curve[step] for curve in curves) for step in steps}
