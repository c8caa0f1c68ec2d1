"""The VADE baseline: task-level pass probabilities by Thompson sampling (arXiv 2511.18902)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.base import GroupObservation, TaskSampler
from arise.curriculum.evidence import check_decay
from arise.types import SampledTask, Task


class VadeSampler(TaskSampler):
    """Draws p_x ~ Beta(1+α_x, 1+β_x) for every task and takes the B largest p(1−p)².

    A chosen task gets α ← γ_obs·α + r and β ← γ_obs·β + (n − r), where r counts raw rewards > 0
    among its n surviving rollouts. Every other task, those without a survivor included, fades by
    γ_unobs at each step.

    Example:
        α = 8.4 and 7 of 8 rewards > 0: α ← 0.2·8.4 + 7 = 8.68. A task with α = 9 that was not
        chosen: 8.991.
    """

    kind: ClassVar[str] = "vade"

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        seed: int,
        quarantine_after: int,
        gamma_obs: float,
        gamma_unobs: float,
    ) -> None:
        """Start with α = β = 0.

        Args:
            tasks: The training set X; ids must be unique.
            seed: Seed of the sampler's own generator.
            quarantine_after: Infrastructure failures in a row that set a task aside.
            gamma_obs: γ_obs, in [0, 1].
            gamma_unobs: γ_unobs, in (0, 1].

        Raises:
            ConfigError: If X is empty, ids repeat or a value is out of range.
        """
        super().__init__(tasks=tasks, seed=seed, quarantine_after=quarantine_after)
        check_decay(gamma_obs=gamma_obs, gamma_unobs=gamma_unobs)
        self._gamma_obs = gamma_obs
        self._gamma_unobs = gamma_unobs
        self._set_rows(())

    def counts(self, task_id: str) -> tuple[float, float]:
        """α and β of a task; (0, 0) if it was never seen."""
        row = self._row.get(task_id)
        if row is None:
            return (0.0, 0.0)
        alpha, beta = self._counts[row]
        return (float(alpha), float(beta))

    def state_dict(self) -> dict[str, Any]:
        """See `Sampler.state_dict`; tasks with α = β = 0 are left out."""
        seen = np.flatnonzero(self._counts.any(axis=1))
        counts = {
            self._ids[row]: (alpha, beta)
            for row, (alpha, beta) in zip(seen, self._counts[seen].tolist(), strict=True)
        }
        return {**super().state_dict(), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Sampler.load_state_dict`."""
        super().load_state_dict(state)
        self._set_rows(
            task_id for task_id in state["counts"] if task_id not in self._table.position
        )
        for task_id, counts in state["counts"].items():
            self._counts[self._row[task_id]] = counts

    def metrics(self) -> dict[str, float]:
        """See `Sampler.metrics`; adds the mean estimate (1+α)/(2+α+β) over X."""
        counts = self._counts[: len(self._table)]
        estimates = (1.0 + counts[:, 0]) / (2.0 + counts.sum(axis=1))
        return {**super().metrics(), "sampler/mean_pass_probability": float(estimates.mean())}

    def _choose(self, num_tasks: int, available: NDArray[np.bool_]) -> list[SampledTask]:
        """The B largest scores; a sample's numbers are α, β and the drawn p_x."""
        candidates = np.flatnonzero(available)
        alpha, beta = 1.0 + self._counts[candidates].T
        pass_probability = self._generator.beta(alpha, beta)
        score = pass_probability * (1.0 - pass_probability) ** 2
        size = min(num_tasks, len(candidates))
        if size == 0:
            return []
        top = np.argpartition(-score, size - 1)[:size]
        top = top[np.lexsort((top, -score[top]))]
        return [
            SampledTask(
                task=self._table.tasks[candidates[i]],
                reason="vade",
                numbers={
                    "passes": float(alpha[i]) - 1.0,
                    "failures": float(beta[i]) - 1.0,
                    "drawn_pass_rate": float(pass_probability[i]),
                },
            )
            for i in top
        ]

    def _learn(self, version: int, groups: Sequence[GroupObservation]) -> None:
        unchosen = np.ones(len(self._counts), dtype=np.bool_)
        for group in groups:
            row = self._row.get(group.task_id)
            if row is None or not group.rewards:
                continue
            unchosen[row] = False
            num_passes = sum(reward > 0 for reward in group.rewards)
            num_failures = len(group.rewards) - num_passes
            self._counts[row] *= self._gamma_obs
            self._counts[row] += (num_passes, num_failures)
        self._counts[unchosen] *= self._gamma_unobs

    def _set_rows(self, absent: Iterable[str]) -> None:
        """One row per task of X, then one per seen task that left X; all at 0."""
        self._ids = [*self._table.position, *absent]
        self._row = {task_id: row for row, task_id in enumerate(self._ids)}
        self._counts = np.zeros((len(self._ids), 2))
