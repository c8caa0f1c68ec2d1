"""Which tasks have applicable evidence for which rubric: who may be an adaptive choice (B.5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.evidence import CAPABILITIES, COLUMN
from arise.curriculum.task_table import TaskTable
from arise.types import Capability


class EvidenceRecords:
    """The set of (task, rubric) with an applicable verdict in a complete group, and its counts.

    Records of tasks that left X stay by id and count again when the task returns.

    Attributes:
        num_records: Rubrics of the pool with a record, by task and capability,
            int32[num_tasks, 5].
        num_members: Tasks that carry tag d and have a record for capability c,
            int64[num_tags, 5].

    Example:
        >>> records = EvidenceRecords(table)  # task "a" with tags ("ml", "db")
        >>> records.add_pair(7, Capability.EXECUTION)
        >>> records.add("a", [7])
        >>> records.num_members[:, 1].tolist()  # execution is the second capability
        [1, 1]
    """

    def __init__(self, table: TaskTable) -> None:
        self._table = table
        self._column: dict[int, int] = {}
        self._tasks_of: dict[int, set[str]] = {}
        self.num_records: NDArray[np.int32] = np.zeros(
            (len(table), len(CAPABILITIES)), dtype=np.int32
        )
        self.num_members: NDArray[np.int64] = np.zeros(
            (len(table.tags), len(CAPABILITIES)), dtype=np.int64
        )

    def add_pair(self, pair_id: int, capability: Capability) -> None:
        """Start a rubric without records."""
        self._column[pair_id] = COLUMN[capability]
        self._tasks_of[pair_id] = set()

    def forget(self, pair_id: int) -> None:
        """Drop a rubric's records."""
        column = self._column.pop(pair_id)
        for task_id in self._tasks_of.pop(pair_id):
            self._change(task_id, column, -1)

    def add(self, task_id: str, pair_ids: Iterable[int]) -> None:
        """Note that a task has applicable evidence for rubrics of the pool."""
        for pair_id in pair_ids:
            if task_id not in self._tasks_of[pair_id]:
                self._tasks_of[pair_id].add(task_id)
                self._change(task_id, self._column[pair_id], +1)

    def members(self, row: int, column: int) -> NDArray[np.int32]:
        """Positions of the tasks with tag `row` and a record for capability `column`, ascending."""
        tagged = self._table.members_of(row)
        return tagged[self.num_records[tagged, column] > 0]

    def state_dict(self) -> dict[str, Any]:
        """The records as `{pair_id: {task ids}}`."""
        return {"tasks_of": {pair_id: set(ids) for pair_id, ids in self._tasks_of.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over records; their rubrics must have been added before."""
        for pair_id, task_ids in state["tasks_of"].items():
            for task_id in task_ids:
                self.add(task_id, (pair_id,))

    def _change(self, task_id: str, column: int, by: int) -> None:
        position = self._table.position.get(task_id)
        if position is None:
            return
        had_any = self.num_records[position, column] > 0
        self.num_records[position, column] += by
        has_any = self.num_records[position, column] > 0
        if had_any != has_any:
            self.num_members[self._table.rows_of(position), column] += by
