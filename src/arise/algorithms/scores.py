"""Rewards made of criteria alone, for the baselines that replace Eq. 15 to 17.

A score of `None` means that no criterion says anything about a trajectory: it leaves the group's
statistics and gets advantage 0. Its tokens still count in Σm.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from arise.algorithms.advantages import task_advantages
from arise.types import Outcome

_VALID = (Outcome.PASS, Outcome.FAIL)


def points_score(
    outcomes: Mapping[int, Outcome], *, pair_ids: Collection[int] | None = None
) -> float | None:
    """RuscaRL: points met over points possible, one point for each criterion that applies.

    Not-applicable and invalid criteria are not possible points.

    Args:
        outcomes: Valid verdicts of one trajectory by pair id.
        pair_ids: Pairs that count; `None` counts all.

    Returns:
        A number in [0, 1]; `None` if no criterion applies.

    Example:
        >>> points_score({1: Outcome.PASS, 2: Outcome.FAIL, 3: Outcome.NOT_APPLICABLE})
        0.5
    """
    applicable = [
        outcome
        for pair_id, outcome in outcomes.items()
        if outcome in _VALID and (pair_ids is None or pair_id in pair_ids)
    ]
    if not applicable:
        return None
    return sum(outcome is Outcome.PASS for outcome in applicable) / len(applicable)


def weighted_score(
    weights: Mapping[int, float],
    outcomes: Mapping[int, Outcome],
    *,
    is_success: bool,
    outcome_weight: float,
) -> float:
    """OnlineRubrics: Σ w·met / Σ_{w>0} w, the verifier's outcome being one of the criteria.

    A criterion with a negative weight names a mistake: meeting it costs. Criteria that do not
    apply to a trajectory, or have no valid verdict, leave both sums.

    Args:
        weights: Weight by criterion, not 0.
        outcomes: Valid verdicts of one trajectory by criterion; `PASS` means met.
        is_success: Whether the verifier passed the trajectory.
        outcome_weight: Weight of the verifier's outcome, above 0.

    Example:
        >>> weighted_score({1: 2.0, 2: -1.0}, {1: Outcome.PASS, 2: Outcome.PASS},
        ...                is_success=True, outcome_weight=5.0)  # (5 + 2 - 1) / (5 + 2)
        0.8571428571428571
    """
    valid = {id_: weight for id_, weight in weights.items() if outcomes.get(id_) in _VALID}
    met = [weight for id_, weight in valid.items() if outcomes[id_] is Outcome.PASS]
    possible = [weight for weight in valid.values() if weight > 0]
    gained = math.fsum([outcome_weight * is_success, *met])
    return gained / math.fsum([outcome_weight, *possible])


def score_advantages(
    scores: Sequence[float | None], *, std: str, eps: float
) -> NDArray[np.float64]:
    """Group-normalized scores, (s − μ) / (σ + ε), over the trajectories that have one.

    Args:
        scores: [G'], one per survivor.
        std: "sample" or "population".
        eps: ε of the denominator.

    Returns:
        float64[G'], 0 where there is no score.

    Raises:
        ConfigError: If `std` or ε is not allowed.

    Example: scores [1.0, None, 0.0] with the population std give [1, 0, -1].
    """
    advantages = np.zeros(len(scores))
    kept = [index for index, score in enumerate(scores) if score is not None]
    values = [score for score in scores if score is not None]
    advantages[kept] = task_advantages(values, std=std, eps=eps)
    return advantages
