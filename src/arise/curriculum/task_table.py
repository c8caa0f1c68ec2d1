"""The training set X as arrays, so that a batch is drawn from a million tasks in milliseconds."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from arise.errors import ConfigError
from arise.types import Task


class TaskTable:
    """Tasks by position, and which tags they carry; never changes.

    Attributes:
        tasks: X, in the order given; every array of the samplers is indexed by this position.
        position: Position of a task by id.
        tags: Distinct tags d of all tasks, sorted; their position is the tag's row.

    Example:
        >>> table = TaskTable(tasks)  # ids "a", "b" with tags ("ml",), ("db", "ml")
        >>> table.tags, table.rows_of(1).tolist(), table.members_of(1).tolist()
        (('db', 'ml'), [0, 1], [0, 1])
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            raise ConfigError("the training set is empty: datamodule must give at least one task")
        self.tasks = tuple(tasks)
        self.position = {task.id: position for position, task in enumerate(self.tasks)}
        if len(self.position) < len(self.tasks):
            counts = Counter(task.id for task in self.tasks)
            twice = sorted(task_id for task_id, count in counts.items() if count > 1)
            raise ConfigError(
                f"task ids must be unique, evidence is kept by them: {len(twice)} ids occur more "
                f"than once, the first is {twice[0]!r}; check the sources of datamodule"
            )
        # A tag written twice on a task must not count twice in Eq. 10.
        distinct = [tuple(dict.fromkeys(task.tags)) for task in self.tasks]
        self.tags = tuple(sorted(set(chain.from_iterable(distinct))))
        row = {tag: number for number, tag in enumerate(self.tags)}
        num_tags = np.fromiter(map(len, distinct), dtype=np.int64, count=len(distinct))
        self._offsets = np.concatenate([[0], np.cumsum(num_tags)])
        self._rows = np.fromiter(
            (row[tag] for tag in chain.from_iterable(distinct)),
            dtype=np.int32,
            count=int(self._offsets[-1]),
        )
        owners = np.repeat(np.arange(len(self.tasks), dtype=np.int32), num_tags)
        by_tag = np.argsort(self._rows, kind="stable")
        ends = np.cumsum(np.bincount(self._rows, minlength=len(self.tags)))
        self._members = np.split(owners[by_tag], ends[:-1]) if self.tags else []

    def __len__(self) -> int:
        return len(self.tasks)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the sorted ids: whether two task sets are the same."""
        return hashlib.sha256("\n".join(sorted(self.position)).encode()).hexdigest()

    def rows_of(self, position: int) -> NDArray[np.int32]:
        """Rows of the tags of the task at `position`, int32[num_tags of the task]."""
        return self._rows[self._offsets[position] : self._offsets[position + 1]]

    def members_of(self, row: int) -> NDArray[np.int32]:
        """Positions of the tasks that carry the tag of `row`, ascending, int32[num_members]."""
        return self._members[row]
