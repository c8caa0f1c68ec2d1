"""A study's runs together: what figures and tables ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arise.study.collect import Curve, RunData
from arise.study.probes import read_probe
from arise.study.statistics import (
    Comparison,
    Estimate,
    compare,
    estimate,
    holm,
    steps_to_reach,
)

LABELS = {
    "arise": "ARISE",
    "ablation/outcome_only": "Outcome-only RL",
    "ablation/no_skill_injection": "w/o Skill Injection",
    "ablation/no_adaptive_sampling": "w/o Adaptive Sampling",
    "ablation/vade_sampling": "w/ VADE Sampling",
    "ablation/frozen_rubrics": "w/ Frozen Rubrics",
    "baseline/vade": "VADE",
    "baseline/ruscarl": "RuscaRL",
    "baseline/online_rubrics": "OnlineRubrics",
    "control/placebo": "Placebo Rubrics",
    "control/oracle": "Oracle Rubrics",
}


def label(experiment: str) -> str:
    """How figures and tables name an experiment."""
    return LABELS.get(experiment, experiment)


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """Finished runs by experiment.

    Attributes:
        runs: In the order of the plan, at least one for each experiment named.
        method: Experiment that the others are compared with.
        baseline: Experiment whose final rate the method is to reach in fewer steps.
        probes: Folder of the probes' results.
        stage_steps: Iterations of a stage.
    """

    runs: dict[str, list[RunData]]
    method: str
    baseline: str
    probes: Path
    stage_steps: int

    @property
    def task_sets(self) -> list[str]:
        """Evaluated task sets that every run has, held-out first."""
        every = [run.task_sets for own in self.runs.values() for run in own]
        return [name for name in every[0] if all(name in names for names in every)]

    def of(self, experiment: str) -> list[RunData]:
        """The runs of an experiment; none if it is not part of the study, or not done."""
        return self.runs.get(experiment, [])

    def probe(self, run: RunData) -> dict[str, Any]:
        """What probing a run gave."""
        return read_probe(self.probes, run)

    def finals(self, experiment: str, task_set: str = "held-out") -> dict[int, float]:
        """Final pass rate in percent by seed."""
        return {run.seed: run.final(task_set) for run in self.of(experiment)}

    def final(self, experiment: str, task_set: str = "held-out") -> Estimate:
        """Final pass rate over seeds."""
        return estimate(list(self.finals(experiment, task_set).values()))

    def comparisons(self, task_set: str = "held-out") -> dict[str, Comparison]:
        """The method minus each other experiment in the final pass rate, corrected by Holm."""
        own = self.finals(self.method, task_set)
        found = {
            experiment: comparison
            for experiment in self.runs
            if experiment != self.method
            and (comparison := compare(own, self.finals(experiment, task_set))) is not None
        }
        corrected = holm({name: comparison.p_t for name, comparison in found.items()})
        return {name: replace(c, p_holm=corrected[name]) for name, c in found.items()}

    def steps_to_baseline(self, task_set: str = "held-out") -> dict[int, tuple[float | None, int]]:
        """By seed: step at which the method reaches the baseline's final rate, and its steps."""
        baseline = {run.seed: run.curve(task_set) for run in self.of(self.baseline)}
        return {
            run.seed: (
                steps_to_reach(run.curve(task_set), baseline[run.seed][max(baseline[run.seed])]),
                max(baseline[run.seed]),
            )
            for run in self.of(self.method)
            if run.seed in baseline
        }


def estimates_by_step(curves: Sequence[Curve]) -> dict[int, Estimate]:
    """Mean and interval over runs at every step that all of them have."""
    if not curves:
        return {}
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {step: estimate([curve[step] for curve in curves]) for step in steps}
