"""What a sampler is: five verbs, what it learns from, and what all samplers share."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.ledger import TaskLedger
from arise.curriculum.task_table import TaskTable
from arise.errors import ConfigError
from arise.types import Capability, Outcome, SampledTask, Task

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObservation:
    """What a sampler learns from one trained group.

    Attributes:
        task_id: Task x of the group.
        tags: Task types d of x.
        num_rollouts: G, lost rollouts included.
        outcomes: Valid verdicts by pair id of each survivor, in slot order.
        rewards: Raw verifier reward of each survivor; aligned with `outcomes`.
        is_complete: Whether no rollout was lost.
        was_sent_to_evaluation: Whether judge or initial analysis was asked, whatever came back.

    Example:
        >>> GroupObservation(
        ...     task_id="a", tags=("ml",), num_rollouts=2,
        ...     outcomes=({7: Outcome.PASS}, {7: Outcome.FAIL}), rewards=(1.0, 0.0),
        ...     is_complete=True, was_sent_to_evaluation=True,
        ... ).is_complete
        True
    """

    task_id: str
    tags: tuple[str, ...]
    num_rollouts: int
    outcomes: tuple[Mapping[int, Outcome], ...]
    rewards: tuple[float, ...]
    is_complete: bool = True
    was_sent_to_evaluation: bool = True


class Sampler(Protocol):
    """Chooses the tasks of an iteration.

    `draw`, `observe`, `state_dict`, `load_state_dict` and `metrics` are the five verbs. `add_pair`
    and `forget` tell of the pool, which a sampler may ignore.
    """

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Ids of the tasks that are set aside for the run, sorted."""
        ...

    def draw(self, num_tasks: int, exclude: Collection[str] = ()) -> list[SampledTask]:
        """Draw a batch of distinct tasks.

        Args:
            num_tasks: B.
            exclude: Ids of tasks in flight.

        Returns:
            `num_tasks` samples, fewer if fewer tasks are available.
        """
        ...

    def observe(self, version: int, groups: Sequence[GroupObservation]) -> None:
        """Learn from the groups of one optimizer step.

        Args:
            version: The trainer's policy version *after* the step (k+1).
            groups: The trained groups, in any order.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as primitives, tuples, dicts and sets."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; records of tasks that are not in X are kept by id.

        Raises:
            ConfigError: If the state is another sampler's.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Scalars about the last draw and the whole history, by TensorBoard name."""
        ...

    def add_pair(self, pair_id: int, capability: Capability) -> None:
        """A rubric is born: a fresh need for discovery."""
        ...

    def forget(self, pair_id: int) -> None:
        """A rubric is retired: its evidence, coverage and records go; nothing else changes."""
        ...


class TaskSampler:
    """Base of the three samplers: tasks, generator, ledger, quarantine and state.

    Subclasses implement `_choose` and, if they learn, `_learn`. All randomness comes from
    `self._generator` (PCG64), whose position is part of the state.

    Attributes:
        kind: Name of the sampler in the configuration.
        ledger: Counts by task.
    """

    kind: ClassVar[str]

    def __init__(self, *, tasks: Sequence[Task], seed: int, quarantine_after: int) -> None:
        """Start with an empty history.

        Args:
            tasks: The training set X; ids must be unique.
            seed: Seed of the sampler's own generator.
            quarantine_after: Infrastructure failures in a row that set a task aside.

        Raises:
            ConfigError: If X is empty, ids repeat or a value is out of range.
        """
        self._table = TaskTable(tasks)
        self.ledger = TaskLedger(self._table, quarantine_after=quarantine_after)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._version = 0
        self._last_reasons: Counter[str] = Counter()

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Ids of the tasks that are set aside for the run, sorted."""
        return self.ledger.quarantined

    def draw(self, num_tasks: int, exclude: Collection[str] = ()) -> list[SampledTask]:
        """Draw a batch of distinct tasks; see `Sampler.draw`."""
        samples = self._choose(num_tasks, self.ledger.available(exclude))
        for sample in samples:
            self.ledger.record_draw(sample.task.id)
        self._last_reasons = Counter(sample.reason for sample in samples)
        return samples

    def observe(self, version: int, groups: Sequence[GroupObservation]) -> None:
        """Learn from the groups of one optimizer step; see `Sampler.observe`.

        Raises:
            ValueError: If `version` is older than one already observed.
        """
        if version < self._version:
            raise ValueError(f"policy version {version} was observed after {self._version}")
        # Sums of floats depend on their order: it must not be the order of completion.
        ordered = sorted(groups, key=lambda group: group.task_id)
        for group in ordered:
            self.ledger.record(
                group.task_id,
                is_complete=group.is_complete,
                was_sent_to_evaluation=group.was_sent_to_evaluation,
            )
        self._learn(version, ordered)
        self._version = version

    def state_dict(self) -> dict[str, Any]:
        """See `Sampler.state_dict`."""
        return {
            "kind": self.kind,
            "num_tasks": len(self._table),
            "task_digest": self._table.digest,
            "version": self._version,
            "generator": self._generator.bit_generator.state,
            "ledger": self.ledger.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Sampler.load_state_dict`."""
        if state.get("kind") != self.kind:
            raise ConfigError(
                f"the saved state is of the sampler {state.get('kind')!r}, but "
                f"curriculum.sampler is {self.kind!r}: resume with the sampler it was saved with"
            )
        if state["task_digest"] != self._table.digest:
            _log.warning(
                "the training set is another one than in the saved state (%d tasks then, %d now): "
                "evidence goes on by task id, new tasks start without any",
                state["num_tasks"],
                len(self._table),
            )
        self._version = state["version"]
        self._generator.bit_generator.state = state["generator"]
        self.ledger.load_state_dict(state["ledger"])

    def metrics(self) -> dict[str, float]:
        """See `Sampler.metrics`."""
        return {
            "sampler/num_quarantined": float(len(self.quarantined)),
            "sampler/draw_entropy": self.ledger.draw_entropy(),
        }

    def add_pair(self, pair_id: int, capability: Capability) -> None:
        """Nothing to do: this sampler does not look at rubrics."""

    def forget(self, pair_id: int) -> None:
        """Nothing to do: this sampler does not look at rubrics."""

    def _choose(self, num_tasks: int, available: NDArray[np.bool_]) -> list[SampledTask]:
        raise NotImplementedError

    def _learn(self, version: int, groups: Sequence[GroupObservation]) -> None:
        """Nothing to do: this sampler does not learn."""
