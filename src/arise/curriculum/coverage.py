"""Which rubrics were evaluated on which task, and how far that has come (Eq. 11, 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.task_table import TaskTable
from arise.errors import ConfigError
from arise.types import Capability, Outcome


def discovery_probability(coverage: float, minimum: float) -> float:
    """ρ_k = max(ρ_min, 1 − C_k) (Eq. 12)."""
    return max(minimum, 1.0 - coverage)


def check_minimum(min_discovery_probability: float) -> None:
    """Check ρ_min.

    Raises:
        ConfigError: If it is not in [0, 1].
    """
    if not 0.0 <= min_discovery_probability <= 1.0:
        raise ConfigError(
            "curriculum.min_discovery_probability must be in [0, 1], got "
            f"{min_discovery_probability}"
        )


class Coverage:
    """E(x): the rubrics of the pool for which one complete group of x got G valid verdicts.

    Not applicable is a valid verdict. An entry never expires; a retired rubric's entries go. Those
    of tasks that left X stay by id and do not count in C.

    Example:
        >>> coverage = Coverage(table)  # tasks "a" and "b"
        >>> coverage.add_pair(7, Capability.EXECUTION)
        >>> coverage.observe("a", 2, [{7: Outcome.PASS}, {7: Outcome.NOT_APPLICABLE}])
        >>> coverage.value(), coverage.outstanding().tolist()
        (0.5, [False, True])
    """

    def __init__(self, table: TaskTable) -> None:
        self._table = table
        self._capabilities: dict[int, Capability] = {}
        self._tasks_of: dict[int, set[str]] = {}
        self._num_tasks_of: Counter[int] = Counter()
        self._num_covered: NDArray[np.int32] = np.zeros(len(table), dtype=np.int32)

    def add_pair(self, pair_id: int, capability: Capability) -> None:
        """Start a rubric that no task covers: every task needs discovery again."""
        self._capabilities[pair_id] = capability
        self._tasks_of[pair_id] = set()

    def forget(self, pair_id: int) -> None:
        """Drop a rubric and its entries."""
        del self._capabilities[pair_id]
        for task_id in self._tasks_of.pop(pair_id):
            position = self._table.position.get(task_id)
            if position is not None:
                self._num_covered[position] -= 1
        self._num_tasks_of.pop(pair_id, None)

    def observe(
        self, task_id: str, num_rollouts: int, outcomes: Sequence[Mapping[int, Outcome]]
    ) -> None:
        """Enter the rubrics of the pool with a valid verdict in all trajectories of one group.

        Args:
            task_id: Task x.
            num_rollouts: G; a group with fewer trajectories covers nothing.
            outcomes: Valid verdicts by pair id of each trajectory.
        """
        if len(outcomes) < num_rollouts:
            return
        valid_everywhere = set(self._tasks_of).intersection(*outcomes)
        for pair_id in valid_everywhere:
            self._enter(task_id, pair_id)

    def covered(self, task_id: str) -> frozenset[int]:
        """E(x) of a task, by pair id."""
        return frozenset(pair for pair, task_ids in self._tasks_of.items() if task_id in task_ids)

    def outstanding(self) -> NDArray[np.bool_]:
        """Where R_k∖E(x) is not empty, bool[num_tasks]; everywhere while the pool is empty."""
        if not self._capabilities:
            return np.ones(len(self._table), dtype=np.bool_)
        return self._num_covered < len(self._capabilities)

    def value(self) -> float:
        """C_k of Eq. 11, in [0, 1]; 0 while the pool is empty.

        C = 1/(|X|·|C_k|) · Σ_x Σ_c |E(x) ∩ R_c| / |R_c| over the capabilities with rubrics.
        """
        sizes = Counter(self._capabilities.values())
        if not sizes:
            return 0.0
        entries: Counter[Capability] = Counter()
        for pair_id, capability in self._capabilities.items():
            entries[capability] += self._num_tasks_of[pair_id]
        shares = [entries[c] / (sizes[c] * len(self._table)) for c in sorted(sizes)]
        return sum(shares) / len(shares)

    def state_dict(self) -> dict[str, Any]:
        """The entries as `{pair_id: {task ids}}`."""
        return {"tasks_of": {pair_id: set(ids) for pair_id, ids in self._tasks_of.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over entries; their rubrics must have been added before."""
        for pair_id, task_ids in state["tasks_of"].items():
            for task_id in task_ids:
                self._enter(task_id, pair_id)

    def _enter(self, task_id: str, pair_id: int) -> None:
        if task_id in self._tasks_of[pair_id]:
            return
        self._tasks_of[pair_id].add(task_id)
        position = self._table.position.get(task_id)
        if position is not None:
            self._num_covered[position] += 1
            self._num_tasks_of[pair_id] += 1
