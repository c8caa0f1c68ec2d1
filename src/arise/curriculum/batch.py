"""One batch under construction (Appendix B.5): discovery, adaptive selection, fallback."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.evidence import CAPABILITIES
from arise.curriculum.records import EvidenceRecords
from arise.curriculum.task_table import TaskTable
from arise.types import SampledTask


class WeightedUrn:
    """Draws with given weights and without replacement, in logarithmic time.

    A draw that hits a removed item is repeated, which leaves the distribution of the others as it
    is; once half of the weight is removed, the urn is rebuilt from the rest.

    Example:
        >>> urn = WeightedUrn(np.array([4, 9]), np.array([1.0, 0.5]))
        >>> urn.remove(4)
        >>> urn.draw(np.random.default_rng(0)), urn.num_items
        (9, 1)
    """

    def __init__(self, items: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Fill the urn.

        Args:
            items: Distinct numbers, ascending, int64[num_items].
            weights: Positive weights, float64[num_items].
        """
        self._fill(items, weights)

    @property
    def num_items(self) -> int:
        """Items left."""
        return self._num_items

    def remove(self, item: int) -> None:
        """Take an item out; nothing happens if it is not in the urn."""
        slot = int(np.searchsorted(self._items, item))
        if slot < len(self._items) and self._items[slot] == item and self._is_in[slot]:
            self._is_in[slot] = False
            self._num_items -= 1
            self._removed_weight += float(self._weights[slot])

    def draw(self, generator: np.random.Generator) -> int:
        """Draw an item and leave it in the urn, which must not be empty."""
        if 2.0 * self._removed_weight > self._cumulative[-1]:
            self._fill(self._items[self._is_in], self._weights[self._is_in])
        while True:
            slot = draw_index(self._cumulative, generator)
            if self._is_in[slot]:
                return int(self._items[slot])

    def _fill(self, items: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        self._items, self._weights = items, weights
        self._cumulative = np.cumsum(weights)
        self._is_in = np.ones(len(items), dtype=np.bool_)
        self._num_items = len(items)
        self._removed_weight = 0.0


def draw_index(cumulative: NDArray[np.float64], generator: np.random.Generator) -> int:
    """Draw an index with the weights whose cumulative sum is given, float64[n], n >= 1."""
    point = generator.random() * cumulative[-1]
    # Rounding may put the point on the upper end itself.
    return min(int(np.searchsorted(cumulative, point, side="right")), len(cumulative) - 1)


class BatchBuilder:
    """The tasks chosen so far for one batch, and what may still be chosen.

    Attributes:
        samples: Chosen tasks, in order.
        num_available: Tasks that may still be chosen.
    """

    def __init__(
        self,
        *,
        table: TaskTable,
        records: EvidenceRecords,
        totals: NDArray[np.float64],
        outstanding: NDArray[np.bool_],
        burden: NDArray[np.int64],
        available: NDArray[np.bool_],
        max_hits: int,
        generator: np.random.Generator,
    ) -> None:
        """Start an empty batch.

        Args:
            table: The tasks of X.
            records: Tasks with applicable evidence.
            totals: S and F at the moment of the draw, float64[num_tags, 5, 2].
            outstanding: Tasks with R_k∖E(x) not empty, bool[num_tasks].
            burden: a_x + f_x, int64[num_tasks].
            available: Tasks that may be chosen, bool[num_tasks]; changed in place.
            max_hits: Adaptive selections that one pair may get.
            generator: Source of all draws.
        """
        self.samples: list[SampledTask] = []
        self.num_available = int(np.count_nonzero(available))
        self._table, self._records, self._burden = table, records, burden
        self._available, self._generator = available, generator
        self._discovery = self._urn(np.flatnonzero(outstanding & available))
        self._rest: WeightedUrn | None = None
        self._totals = totals.reshape(-1, 2)
        self._beta = (1.0 + self._totals[:, 0], 1.0 + self._totals[:, 1])
        self._hits_left = np.full(self._beta[0].shape, max_hits)
        self._num_members = records.num_members.copy()
        for position in np.flatnonzero(~available).tolist():
            self._leave_pairs(position)
        self._members: dict[int, NDArray[np.int32]] = {}
        self._numbers: dict[str, float] = {}

    def add_one(self, discovery_probability: float) -> None:
        """Choose the next task; at least one must be available.

        The sample's numbers: `discovery_probability` ρ and `num_attempts` a_x + f_x of the task; if
        adaptive, S and F of the pair as `passes` and `failures`, and `drawn_pass_rate` p̃.

        1. With probability ρ discovery, if a task needs it: weights 1/(1 + a_x + f_x).
        2. Else adaptive, if a pair is eligible.
        3. Else the weights of discovery over the tasks that need it or, if none does, over all.
        """
        self._numbers = {"discovery_probability": discovery_probability}
        has_discovery = self._discovery.num_items > 0
        if has_discovery and self._generator.random() < discovery_probability:
            self._take(self._discovery.draw(self._generator), "discovery")
            return
        eligible = np.flatnonzero((self._num_members.ravel() > 0) & (self._hits_left > 0))
        if len(eligible):
            pair = self._draw_pair(eligible)
            self._hits_left[pair] -= 1
            self._take(self._draw_member(pair), "adaptive", pair)
            return
        if has_discovery:
            self._take(self._discovery.draw(self._generator), "fallback")
            return
        if self._rest is None:
            self._rest = self._urn(np.flatnonzero(self._available))
        self._take(self._rest.draw(self._generator), "fallback")

    def _draw_pair(self, eligible: NDArray[np.int64]) -> int:
        """Draw (d, c) with probability ∝ p̃(1−p̃)², p̃ ~ Beta(1+S, 1+F) afresh (Eq. 13, 14)."""
        successes, failures = self._beta
        estimates = self._generator.beta(successes[eligible], failures[eligible])
        weights = estimates * (1.0 - estimates) ** 2
        chosen = draw_index(np.cumsum(weights), self._generator)
        pair = int(eligible[chosen])
        self._numbers["passes"], self._numbers["failures"] = self._totals[pair].tolist()
        self._numbers["drawn_pass_rate"] = float(estimates[chosen])
        return pair

    def _draw_member(self, pair: int) -> int:
        """Draw uniformly among the available tasks with the tag and evidence of their own."""
        if pair not in self._members:
            self._members[pair] = self._records.members(*divmod(pair, len(CAPABILITIES)))
        members = self._members[pair]
        members = members[self._available[members]]
        return int(members[self._generator.integers(len(members))])

    def _take(self, position: int, reason: str, pair: int | None = None) -> None:
        tag = capability = None
        if pair is not None:
            row, column = divmod(pair, len(CAPABILITIES))
            tag, capability = self._table.tags[row], CAPABILITIES[column]
        self._numbers["num_attempts"] = float(self._burden[position])
        self.samples.append(
            SampledTask(
                task=self._table.tasks[position],
                reason=reason,
                tag=tag,
                capability=capability,
                numbers=self._numbers,
            )
        )
        self._available[position] = False
        self.num_available -= 1
        self._discovery.remove(position)
        if self._rest is not None:
            self._rest.remove(position)
        self._leave_pairs(position)

    def _leave_pairs(self, position: int) -> None:
        """A task is not available any more: every pair it is a member of loses one."""
        has_record = self._records.num_records[position] > 0
        self._num_members[self._table.rows_of(position)] -= has_record

    def _urn(self, positions: NDArray[np.int64]) -> WeightedUrn:
        weights = 1.0 / (1.0 + self._burden[positions].astype(np.float64))
        return WeightedUrn(positions, weights)
