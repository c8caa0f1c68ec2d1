"""How often each task was drawn, evaluated and lost: a_x, f_x and quarantine (Appendix B.5)."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.task_table import TaskTable
from arise.errors import ConfigError

_log = logging.getLogger(__name__)


class TaskLedger:
    """Counts by task id; those of tasks that left X stay, for they may come back.

    Attributes:
        num_evaluations: a_x, complete groups that were sent to evaluation. Never resets.
        num_failures: f_x, groups that lost a rollout to infrastructure.
        num_draws: How often a task was drawn.
        burden: a_x + f_x of the tasks of X, int64[num_tasks]; discovery draws with weight
            1/(1 + burden), so that a broken task does not keep the highest weight.

    Example:
        >>> ledger = TaskLedger(table, quarantine_after=3)
        >>> ledger.record("a", is_complete=False, was_sent_to_evaluation=False)
        >>> ledger.burden[0], ledger.quarantined
        (1, ())
    """

    def __init__(self, table: TaskTable, *, quarantine_after: int) -> None:
        """Start with nothing counted.

        Args:
            table: The tasks of X.
            quarantine_after: Infrastructure failures in a row that set a task aside.

        Raises:
            ConfigError: If `quarantine_after` is below 1.
        """
        if quarantine_after < 1:
            raise ConfigError(
                f"curriculum.quarantine_after must be at least 1, got {quarantine_after}"
            )
        self._table = table
        self._quarantine_after = quarantine_after
        self.num_evaluations: dict[str, int] = {}
        self.num_failures: dict[str, int] = {}
        self.num_draws: dict[str, int] = {}
        self._failures_in_row: dict[str, int] = {}
        self._quarantined: set[str] = set()
        self.burden: NDArray[np.int64] = np.zeros(len(table), dtype=np.int64)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Ids of the tasks that are set aside for the run, sorted."""
        return tuple(sorted(self._quarantined))

    def available(self, exclude: Collection[str]) -> NDArray[np.bool_]:
        """Which tasks of X may be drawn now, bool[num_tasks].

        Args:
            exclude: Ids in flight; ids that are not in X are ignored.
        """
        mask = np.ones(len(self._table), dtype=np.bool_)
        for task_id in (*exclude, *self._quarantined):
            position = self._table.position.get(task_id)
            if position is not None:
                mask[position] = False
        return mask

    def record_draw(self, task_id: str) -> None:
        """Count one draw of a task."""
        self.num_draws[task_id] = self.num_draws.get(task_id, 0) + 1

    def record(self, task_id: str, *, is_complete: bool, was_sent_to_evaluation: bool) -> None:
        """Count one trained group.

        A complete group counts in a_x if it was sent to evaluation, whatever the judge answered,
        and ends a row of failures. An incomplete one counts in f_x; the `quarantine_after`-th in
        a row sets the task aside.
        """
        if is_complete:
            self._failures_in_row.pop(task_id, None)
            if was_sent_to_evaluation:
                self._count(self.num_evaluations, task_id)
            return
        self._count(self.num_failures, task_id)
        in_row = self._failures_in_row.get(task_id, 0) + 1
        self._failures_in_row[task_id] = in_row
        if in_row >= self._quarantine_after and task_id not in self._quarantined:
            self._quarantined.add(task_id)
            _log.warning(
                "task %s is set aside for this run: %d infrastructure failures in a row "
                "(curriculum.quarantine_after=%d)",
                task_id,
                in_row,
                self._quarantine_after,
            )

    def draw_entropy(self) -> float:
        """Entropy of all draws so far over X, divided by ln|X|: 1 is uniform; 0 before any draw."""
        total = sum(self.num_draws.values())
        if total == 0 or len(self._table) == 1:
            return 0.0
        entropy = -math.fsum(n / total * math.log(n / total) for n in self.num_draws.values())
        return entropy / math.log(len(self._table))

    def state_dict(self) -> dict[str, Any]:
        """The counts by task id, as primitives."""
        return {
            "num_evaluations": dict(self.num_evaluations),
            "num_failures": dict(self.num_failures),
            "num_draws": dict(self.num_draws),
            "failures_in_row": dict(self._failures_in_row),
            "quarantined": self.quarantined,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over counts; tasks without any start at 0."""
        self.num_evaluations = dict(state["num_evaluations"])
        self.num_failures = dict(state["num_failures"])
        self.num_draws = dict(state["num_draws"])
        self._failures_in_row = dict(state["failures_in_row"])
        self._quarantined = set(state["quarantined"])
        self.burden[:] = 0
        for counts in (self.num_evaluations, self.num_failures):
            for task_id, count in counts.items():
                position = self._table.position.get(task_id)
                if position is not None:
                    self.burden[position] += count

    def _count(self, counts: dict[str, int], task_id: str) -> None:
        counts[task_id] = counts.get(task_id, 0) + 1
        position = self._table.position.get(task_id)
        if position is not None:
            self.burden[position] += 1
