"""Capability-based adaptive sampling (Section 3.2.2, Eq. 12 to 14, batch construction of B.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from arise.curriculum.base import GroupObservation, TaskSampler
from arise.curriculum.batch import BatchBuilder
from arise.curriculum.coverage import Coverage, check_minimum, discovery_probability
from arise.curriculum.evidence import Evidence, group_evidence
from arise.curriculum.records import EvidenceRecords
from arise.errors import ConfigError
from arise.types import Capability, SampledTask, Task

REASONS = ("discovery", "adaptive", "fallback")


class CapabilitySampler(TaskSampler):
    """Mixes discovery of unevaluated tasks with tasks of task types where a capability is weak.

    Every position of the batch takes discovery with probability ρ_k as long as an available task
    lacks an evaluation; else it draws a (task type, capability) pair by Thompson sampling and a
    task among its members. Rubrics come and go by `add_pair` and `forget`, which touch nothing of
    the others.

    Attributes:
        coverage: E(x) and C_k.
        evidence: S and F.
        records: Tasks with applicable evidence.
    """

    kind: ClassVar[str] = "capability"

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        seed: int,
        quarantine_after: int,
        min_discovery_probability: float,
        pair_quota: float,
        gamma_obs: float,
        gamma_unobs: float,
    ) -> None:
        """Start with an empty pool and an empty history.

        Args:
            tasks: The training set X; ids must be unique.
            seed: Seed of the sampler's own generator.
            quarantine_after: Infrastructure failures in a row that set a task aside.
            min_discovery_probability: ρ_min of Eq. 12, in [0, 1].
            pair_quota: b, share of a batch that adaptive selection may give to one pair, in (0, 1].
            gamma_obs: γ_obs of Eq. 20, in [0, 1].
            gamma_unobs: γ_unobs of Eq. 20, in (0, 1].

        Raises:
            ConfigError: If X is empty, ids repeat or a value is out of range.
        """
        super().__init__(tasks=tasks, seed=seed, quarantine_after=quarantine_after)
        check_minimum(min_discovery_probability)
        if not 0.0 < pair_quota <= 1.0:
            raise ConfigError(f"curriculum.pair_quota must be in (0, 1], got {pair_quota}")
        self._min_discovery_probability = min_discovery_probability
        self._pair_quota = pair_quota
        self._decays = {"gamma_obs": gamma_obs, "gamma_unobs": gamma_unobs}
        self.capabilities: dict[int, Capability] = {}
        self._clear()

    @property
    def discovery_probability(self) -> float:
        """ρ_k of Eq. 12, as it stands now."""
        return discovery_probability(self.coverage.value(), self._min_discovery_probability)

    def max_hits(self, num_tasks: int) -> int:
        """max(1, ⌈b·B⌉): adaptive selections of one pair in a batch of B."""
        # b·B may exceed a whole number by a rounding error, which must not cost a position.
        return max(1, math.ceil(self._pair_quota * num_tasks - 1e-9))

    def add_pair(self, pair_id: int, capability: Capability) -> None:
        """A rubric is born: no evidence, and every task needs its evaluation.

        Raises:
            ValueError: If the pair is already known; ids are never reused.
        """
        if pair_id in self.capabilities:
            raise ValueError(f"pair {pair_id} is already in the sampler")
        self.capabilities[pair_id] = capability
        for part in (self.evidence, self.coverage, self.records):
            part.add_pair(pair_id, capability)

    def forget(self, pair_id: int) -> None:
        """A rubric is retired: its evidence, coverage and records go.

        Raises:
            KeyError: If the pair is not known.
        """
        del self.capabilities[pair_id]
        for part in (self.evidence, self.coverage, self.records):
            part.forget(pair_id)

    def state_dict(self) -> dict[str, Any]:
        """See `Sampler.state_dict`."""
        return {
            **super().state_dict(),
            "capabilities": {pair: str(c.value) for pair, c in self.capabilities.items()},
            "evidence": self.evidence.state_dict(),
            "coverage": self.coverage.state_dict(),
            "records": self.records.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Sampler.load_state_dict`."""
        super().load_state_dict(state)
        self._clear()
        for pair_id, capability in state["capabilities"].items():
            self.add_pair(pair_id, Capability(capability))
        self.evidence.load_state_dict(state["evidence"])
        self.coverage.load_state_dict(state["coverage"])
        self.records.load_state_dict(state["records"])

    def metrics(self) -> dict[str, float]:
        """See `Sampler.metrics`; shares are of the last batch, ρ and C as they stand now."""
        size = max(1, sum(self._last_reasons.values()))
        shares = {
            f"sampler/share_{reason}": self._last_reasons[reason] / size for reason in REASONS
        }
        return {
            **super().metrics(),
            **shares,
            "sampler/coverage": self.coverage.value(),
            "sampler/discovery_probability": self.discovery_probability,
            "sampler/num_outstanding": float(np.count_nonzero(self.coverage.outstanding())),
        }

    def _clear(self) -> None:
        self.capabilities.clear()
        self.evidence = Evidence(self._table.tags, **self._decays)
        self.coverage = Coverage(self._table)
        self.records = EvidenceRecords(self._table)

    def _choose(self, num_tasks: int, available: NDArray[np.bool_]) -> list[SampledTask]:
        batch = BatchBuilder(
            table=self._table,
            records=self.records,
            totals=self.evidence.totals(self._version)[: len(self._table.tags)],
            outstanding=self.coverage.outstanding(),
            burden=self.ledger.burden,
            available=available,
            max_hits=self.max_hits(num_tasks),
            generator=self._generator,
        )
        probability = self.discovery_probability
        while len(batch.samples) < num_tasks and batch.num_available:
            batch.add_one(probability)
        return batch.samples

    def _learn(self, version: int, groups: Sequence[GroupObservation]) -> None:
        for group in groups:
            if not group.is_complete:
                continue
            self.coverage.observe(group.task_id, group.num_rollouts, group.outcomes)
            contributions = group_evidence(group.outcomes, self.capabilities)
            self.evidence.observe(version, tuple(dict.fromkeys(group.tags)), contributions)
            self.records.add(group.task_id, contributions)
