"""Evaluation on fixed tasks before, during and after training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lightning import Callback, LightningModule, Trainer

from arise.agents.orchestrator import Orchestrator
from arise.aio import EventLoopThread
from arise.errors import ConfigError
from arise.evaluation.pass_rate import PassRate
from arise.evaluation.runner import evaluate
from arise.inference.base import SamplingParams
from arise.types import Iteration, Task

HELD_OUT = "held-out"


class EvaluationCallback(Callback):
    """Measures pass rates without skills; the curriculum does not see them.

    Args:
        loop: The run's event loop.
        orchestrator: Runs the episodes.
        tasks: Held-out tasks.
        extra: Further task sets by name, such as tasks of families that training never sees.
        eval_interval: Iterations between evaluations; the first and the last policy are always
            evaluated.
        attempts_per_task: M.
        sampling: Evaluation sampling.
        quiet: Print nothing.

    Attributes:
        results: Held-out pass rate by policy version.
        extra_results: The same for each further set, by its name.
    """

    def __init__(
        self,
        *,
        loop: EventLoopThread,
        orchestrator: Orchestrator,
        tasks: Sequence[Task],
        extra: Mapping[str, Sequence[Task]] | None = None,
        eval_interval: int,
        attempts_per_task: int,
        sampling: SamplingParams,
        quiet: bool,
    ) -> None:
        if eval_interval < 1:
            raise ConfigError(f"evaluation.eval_interval = {eval_interval} must be 1 or more")
        self._sets = {HELD_OUT: tasks, **(extra or {})}
        self.results: dict[int, PassRate] = {}
        self.extra_results: dict[str, dict[int, PassRate]] = {name: {} for name in extra or {}}
        self._loop = loop
        self._orchestrator = orchestrator
        self._eval_interval = eval_interval
        self._attempts_per_task = attempts_per_task
        self._sampling = sampling
        self._quiet = quiet

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the untrained policy, unless an earlier part of this run has."""
        if not self.results:
            self._evaluate(trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Evaluate if it is time."""
        step = trainer.global_step
        if step % self._eval_interval == 0 or step == trainer.max_steps:
            started = time.perf_counter()
            self._evaluate(trainer)
            batch.durations_s["evaluation"] = time.perf_counter() - started

    def _evaluate(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        for name, tasks in self._sets.items():
            result = self._loop.run(
                evaluate(
                    self._orchestrator,
                    tasks,
                    attempts_per_task=self._attempts_per_task,
                    sampling=self._sampling,
                )
            )
            by_step = self.results if name == HELD_OUT else self.extra_results[name]
            by_step[step] = result
            self._log(trainer, name, result)

    def _log(self, trainer: Trainer, name: str, result: PassRate) -> None:
        step = trainer.global_step
        prefix = "evaluation" if name == HELD_OUT else f"evaluation_{name}"
        metrics = {
            f"{prefix}/pass_rate": result.percent / 100.0,
            f"{prefix}/run_std": result.run_std / 100.0,
            f"{prefix}/errors": float(result.num_errors),
        }
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)
        if not self._quiet:
            attempts = result.num_tasks * len(result.runs_percent)
            errors = f", {result.num_errors} lost" if result.num_errors else ""
            print(
                f"{name} pass rate after step {step}: {result} "
                f"({attempts} episodes, no skills{errors})",
                flush=True,
            )

    def state_dict(self) -> dict[str, Any]:
        """Results so far, as primitives."""
        return {
            "results": {step: _primitives(r) for step, r in self.results.items()},
            "extra_results": {
                name: {step: _primitives(r) for step, r in results.items()}
                for name, results in self.extra_results.items()
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the results back; those of a set that is not evaluated any more are kept too."""
        self.results = {step: _pass_rate(*r) for step, r in state_dict["results"].items()}
        for name, results in state_dict.get("extra_results", {}).items():
            self.extra_results[name] = {step: _pass_rate(*r) for step, r in results.items()}


def _primitives(result: PassRate) -> tuple[Any, ...]:
    return (
        result.percent,
        result.runs_percent,
        result.num_tasks,
        result.num_errors,
        dict(result.domains_percent),
    )


def _pass_rate(
    percent: float,
    runs_percent: Sequence[float],
    num_tasks: int,
    num_errors: int,
    domains_percent: Mapping[str, float] | None = None,
) -> PassRate:
    return PassRate(
        percent=percent,
        runs_percent=tuple(runs_percent),
        num_tasks=num_tasks,
        num_errors=num_errors,
        domains_percent=domains_percent or {},
    )
