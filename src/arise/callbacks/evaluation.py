"""Held-out evaluation before, during and after training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning import Callback, LightningModule, Trainer

from arise.agents.orchestrator import Orchestrator
from arise.aio import EventLoopThread
from arise.errors import ConfigError
from arise.evaluation.pass_rate import PassRate
from arise.evaluation.runner import evaluate
from arise.inference.base import SamplingParams
from arise.types import Task


class EvaluationCallback(Callback):
    """Measures the held-out pass rate; the curriculum does not see it.

    Args:
        loop: The run's event loop.
        orchestrator: Runs the episodes.
        tasks: Held-out tasks.
        eval_interval: Iterations between evaluations; the first and the last policy are always
            evaluated.
        attempts_per_task: M.
        sampling: Evaluation sampling.
        quiet: Print nothing.

    Attributes:
        results: Pass rate by policy version.
    """

    def __init__(
        self,
        *,
        loop: EventLoopThread,
        orchestrator: Orchestrator,
        tasks: Sequence[Task],
        eval_interval: int,
        attempts_per_task: int,
        sampling: SamplingParams,
        quiet: bool,
    ) -> None:
        if eval_interval < 1:
            raise ConfigError(f"evaluation.eval_interval = {eval_interval} must be 1 or more")
        self.results: dict[int, PassRate] = {}
        self._loop = loop
        self._orchestrator = orchestrator
        self._tasks = tasks
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
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Evaluate if it is time."""
        step = trainer.global_step
        if step % self._eval_interval == 0 or step == trainer.max_steps:
            self._evaluate(trainer)

    def _evaluate(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        result = self._loop.run(
            evaluate(
                self._orchestrator,
                self._tasks,
                attempts_per_task=self._attempts_per_task,
                sampling=self._sampling,
            )
        )
        self.results[step] = result
        metrics = {
            "evaluation/pass_rate": result.percent / 100.0,
            "evaluation/errors": float(result.num_errors),
        }
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)
        if not self._quiet:
            attempts = result.num_tasks * len(result.runs_percent)
            errors = f", {result.num_errors} lost" if result.num_errors else ""
            print(
                f"held-out pass rate after step {step}: {result.percent:.1f} % "
                f"({attempts} episodes, no skills{errors})",
                flush=True,
            )

    def state_dict(self) -> dict[str, Any]:
        """Results so far, as primitives."""
        return {
            "results": {
                step: (r.percent, r.runs_percent, r.num_tasks, r.num_errors)
                for step, r in self.results.items()
            }
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the results back."""
        self.results = {
            step: PassRate(
                percent=percent, runs_percent=runs, num_tasks=num_tasks, num_errors=num_errors
            )
            for step, (percent, runs, num_tasks, num_errors) in state_dict["results"].items()
        }
