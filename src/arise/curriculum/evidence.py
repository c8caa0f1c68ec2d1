"""Success and failure evidence per task type and rubric (Eq. 9, 10, 20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arise.errors import ConfigError
from arise.types import Capability, Outcome

CAPABILITIES = tuple(Capability)
"""The capabilities c, in the order of every axis of length 5."""

COLUMN = {capability: column for column, capability in enumerate(CAPABILITIES)}
"""Column of a capability on such an axis."""


def check_decay(*, gamma_obs: float, gamma_unobs: float) -> None:
    """Check γ_obs and γ_unobs.

    Raises:
        ConfigError: If γ_obs is not in [0, 1] or γ_unobs not in (0, 1].
    """
    if not 0.0 <= gamma_obs <= 1.0:
        raise ConfigError(f"curriculum.gamma_obs must be in [0, 1]: {gamma_obs}")
    if not 0.0 < gamma_unobs <= 1.0:
        raise ConfigError(f"curriculum.gamma_unobs must be in (0, 1]: {gamma_unobs}")


def group_evidence(
    outcomes: Sequence[Mapping[int, Outcome]], capabilities: Mapping[int, Capability]
) -> dict[int, tuple[float, float]]:
    """ΔS_i and ΔF_i of one complete group (Eq. 9 and 10, split over rubrics as in B.5).

    In trajectory j each applicable verdict of capability c adds y/|R_c(τ_j)| to S_i and
    (1−y)/|R_c(τ_j)| to F_i. Not-applicable verdicts and rubrics outside the pool add nothing and
    are not in R_c.

    Args:
        outcomes: Valid verdicts by pair id of each trajectory, in slot order.
        capabilities: Capability of each rubric of the pool.

    Returns:
        (ΔS, ΔF) of the rubrics with at least one applicable verdict, in pair-id order.

    Example:
        Rubrics 1 and 2 of one capability; a trajectory passes 1 and fails 2, the next passes 1
        and 2 does not apply: {1: (0.5 + 1, 0), 2: (0, 0.5)}.
    """
    sums: dict[int, list[float]] = {}
    for verdicts in outcomes:
        applicable = [
            pair_id
            for pair_id, outcome in verdicts.items()
            if pair_id in capabilities and outcome is not Outcome.NOT_APPLICABLE
        ]
        sizes = Counter(capabilities[pair_id] for pair_id in applicable)
        for pair_id in applicable:
            is_failure = verdicts[pair_id] is Outcome.FAIL
            sums.setdefault(pair_id, [0.0, 0.0])[is_failure] += 1.0 / sizes[capabilities[pair_id]]
    return {pair_id: (sums[pair_id][0], sums[pair_id][1]) for pair_id in sorted(sums)}


class Evidence:
    """The accumulators S[d,i] and F[d,i] with the policy version of their last observation.

    They fade when observed (Eq. 20) and, without being rewritten, when queried. Tags that no task
    of X carries any more keep their evidence.

    Example:
        >>> evidence = Evidence(["ml"], gamma_obs=0.2, gamma_unobs=0.999)
        >>> evidence.add_pair(7, Capability.EXECUTION)
        >>> evidence.observe(1, ["ml"], {7: (10.0, 0.0)})
        >>> evidence.observe(4, ["ml"], {7: (1.0, 0.0)})
        >>> round(evidence.current(4, "ml", 7)[0], 6)
        2.996002
    """

    def __init__(self, tags: Sequence[str], *, gamma_obs: float, gamma_unobs: float) -> None:
        """Start without rubrics.

        Args:
            tags: Task types of X; they become rows 0, 1, ... of `totals`.
            gamma_obs: γ_obs, in [0, 1].
            gamma_unobs: γ_unobs, in (0, 1].

        Raises:
            ConfigError: If a decay is out of range.
        """
        check_decay(gamma_obs=gamma_obs, gamma_unobs=gamma_unobs)
        self._gamma_obs = gamma_obs
        self._gamma_unobs = gamma_unobs
        self._row = {tag: row for row, tag in enumerate(tags)}
        self._capabilities: dict[int, Capability] = {}
        self._values: dict[int, NDArray[np.float64]] = {}  # by pair: (S, F) float64[num_rows, 2]
        self._versions: dict[int, NDArray[np.int64]] = {}  # by pair: int64[num_rows], 0 = never

    def add_pair(self, pair_id: int, capability: Capability) -> None:
        """Start a rubric without evidence."""
        self._capabilities[pair_id] = capability
        self._values[pair_id] = np.zeros((len(self._row), 2))
        self._versions[pair_id] = np.zeros(len(self._row), dtype=np.int64)

    def forget(self, pair_id: int) -> None:
        """Drop a rubric's accumulators; those of the others are not renormalized."""
        del self._capabilities[pair_id], self._values[pair_id], self._versions[pair_id]

    def observe(
        self,
        version: int,
        tags: Sequence[str],
        contributions: Mapping[int, tuple[float, float]],
    ) -> None:
        """Add one group's contributions to every tag of its task, in full (Eq. 20).

        (S,F) ← γ_obs·γ_unobs^(Δv−1)·(S,F) + (ΔS,ΔF), Δv policy versions after the accumulator's
        last observation; at the same version (Δv = 0) without decay.

        Args:
            version: The trainer's policy version after the update, at least 1.
            tags: Task types of the task, without repetition.
            contributions: (ΔS, ΔF) by pair id; rubrics that are not in here do not decay.
        """
        for tag in tags:
            row = self._row_of(tag)
            for pair_id, added in contributions.items():
                elapsed = version - int(self._versions[pair_id][row])
                values = self._values[pair_id][row]
                if elapsed > 0:
                    values *= self._gamma_obs * self._gamma_unobs ** (elapsed - 1)
                    self._versions[pair_id][row] = version
                values += added

    def current(self, version: int, tag: str, pair_id: int) -> tuple[float, float]:
        """(S, F) of one tag and rubric as they count at `version`: stored · γ_unobs^Δv."""
        row = self._row.get(tag)
        if row is None:
            return (0.0, 0.0)
        elapsed = version - int(self._versions[pair_id][row])
        success, failure = self._values[pair_id][row] * self._gamma_unobs**elapsed
        return (float(success), float(failure))

    def totals(self, version: int) -> NDArray[np.float64]:
        """S[d,c] and F[d,c] at `version`: sums over the rubrics of c, the Beta prior left out.

        Returns:
            float64[num_rows, 5, 2]; rows as in `tags`, then tags that are not in X.
        """
        totals = np.zeros((len(self._row), len(CAPABILITIES), 2))
        # Pair-id order, one addition at a time: equal sums before and after a resume.
        for pair_id in sorted(self._values):
            decay = self._gamma_unobs ** (version - self._versions[pair_id])
            column = COLUMN[self._capabilities[pair_id]]
            totals[:, column] += self._values[pair_id] * decay[:, None]
        return totals

    def state_dict(self) -> dict[str, Any]:
        """Accumulators as `{pair_id: {tag: (S, F, version)}}`, observed ones only."""
        tags = list(self._row)
        return {
            "accumulators": {
                pair_id: {
                    tags[row]: (*values[row].tolist(), int(self._versions[pair_id][row]))
                    for row in np.flatnonzero(self._versions[pair_id])
                }
                for pair_id, values in self._values.items()
            }
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over accumulators; their rubrics must have been added before."""
        for pair_id, by_tag in state["accumulators"].items():
            for tag, (success, failure, version) in by_tag.items():
                row = self._row_of(tag)
                self._values[pair_id][row] = (success, failure)
                self._versions[pair_id][row] = version

    def _row_of(self, tag: str) -> int:
        if tag not in self._row:
            self._row[tag] = len(self._row)
            for pair_id in self._values:
                self._values[pair_id] = np.vstack([self._values[pair_id], np.zeros((1, 2))])
                self._versions[pair_id] = np.append(self._versions[pair_id], 0)
        return self._row[tag]
