"""Eq. 15 and 16: advantages of one group from task rewards and rubric verdicts.

All statistics are float64 and use correctly rounded sums, so they do not depend on the order of
the trajectories. The input is one value per *trajectory*: how many token rows a trajectory has
does not matter here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arise.algorithms.rewards import finite_rewards
from arise.errors import ConfigError
from arise.types import Outcome

STD_KINDS = ("sample", "population")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RubricAdvantages:
    """A_rub,ij of one group, for the rubrics that tell its trajectories apart.

    Example: two trajectories, rubric 7 passed by the first only (sample std): `pair_ids` (7,),
    `values` [[0.7071, -0.7071]], `applicable` [[True, True]].

    Attributes:
        pair_ids: I of Eq. 16, ascending: rubrics with non-zero verdict variance in the group.
        values: float64[|I|, G'], A_rub,ij; 0 where there is no valid applicable verdict.
        applicable: bool[|I|, G'], whether there is a valid applicable verdict.
    """

    pair_ids: tuple[int, ...]
    values: NDArray[np.float64]
    applicable: NDArray[np.bool_]


def task_advantages(
    rewards: Sequence[float] | NDArray[np.float64], *, std: str, eps: float
) -> NDArray[np.float64]:
    """Normalize the rewards of one group (Eq. 15): A_task = (R − μ) / (σ + ε).

    Exactly 0 where all rewards are equal; so is the advantage of a single survivor. (With an ε of
    1e-9 the rounding noise of a mean would otherwise become an advantage of order 1.)

    Example: rewards [1, 0] give ±0.7071 with the sample std and ±1 with the population std.

    Args:
        rewards: float[G'], shaped rewards of the survivors, one per trajectory.
        std: "sample" (divisor n−1) or "population" (divisor n).
        eps: ε of the denominator.

    Returns:
        float64[G'], with sum 0 up to rounding.

    Raises:
        ConfigError: If `std` or ε is not allowed.
        ValueError: If a reward is not finite.
    """
    _check(std, eps)
    return _normalized(finite_rewards(rewards), std=std, eps=eps)


def rubric_advantages(
    outcomes: Sequence[Mapping[int, Outcome]],
    *,
    std: str,
    eps: float,
    pair_ids: Collection[int] | None = None,
) -> RubricAdvantages:
    """Normalize each rubric's verdicts (pass 1, fail 0) over its valid applicable ones (Eq. 15).

    A rubric whose applicable verdicts are all equal, or fewer than two, is left out.

    Args:
        outcomes: [G'], the valid verdicts of each survivor by pair id; a rubric that is missing
            is invalid or unjudged for that trajectory. Empty if judging failed.
        std: "sample" or "population".
        eps: ε of the denominator.
        pair_ids: Pairs still in the pool; verdicts of others are ignored. `None` keeps all.

    Returns:
        Values and applicability for I, the rubrics with non-zero variance.

    Raises:
        ConfigError: If `std` or ε is not allowed.
    """
    _check(std, eps)
    judged = {pair_id for verdicts in outcomes for pair_id in verdicts}
    if pair_ids is not None:
        judged &= set(pair_ids)
    kept: list[int] = []
    values: list[NDArray[np.float64]] = []
    masks: list[NDArray[np.bool_]] = []
    for pair_id in sorted(judged):
        column = [verdicts.get(pair_id) for verdicts in outcomes]
        mask = np.array([outcome in (Outcome.PASS, Outcome.FAIL) for outcome in column])
        scores = np.array([float(outcome == Outcome.PASS) for outcome in column])
        if not mask.any() or _all_equal(scores[mask]):
            continue
        row = np.zeros(len(outcomes))
        row[mask] = _normalized(scores[mask], std=std, eps=eps)
        kept.append(pair_id)
        values.append(row)
        masks.append(mask)
    shape = (len(kept), len(outcomes))
    return RubricAdvantages(
        pair_ids=tuple(kept),
        values=np.array(values, dtype=np.float64).reshape(shape),
        applicable=np.array(masks, dtype=np.bool_).reshape(shape),
    )


def combined_advantages(
    rewards: Sequence[float] | NDArray[np.float64],
    outcomes: Sequence[Mapping[int, Outcome]],
    *,
    rubric_weight: float,
    std: str,
    eps: float,
    pair_ids: Collection[int] | None = None,
) -> NDArray[np.float64]:
    """Mix task and rubric advantages of one group (Eq. 16).

    A trajectory with an applicable verdict among I gets

        A_j = (1−λ) A_task,j + λ/|I| · Σ_{i in I} A_rub,ij,

    where a rubric that is not applicable or invalid for j adds 0 but stays in |I|. A trajectory
    with none, or all of them if I is empty, keeps A_task in full. So a group in which everything
    failed still learns from its rubrics, and a mixed group need not sum to 0.

    Args:
        rewards: float[G'], shaped rewards of the survivors.
        outcomes: [G'], valid verdicts by pair id of the same trajectories.
        rubric_weight: λ, in [0, 1].
        std: "sample" or "population".
        eps: ε of Eq. 15.
        pair_ids: Pairs still in the pool; verdicts of pairs retired meanwhile leave I and |I|.
            `None` keeps all.

    Returns:
        float64[G'].

    Raises:
        ConfigError: If λ, `std` or ε is not allowed.
        ValueError: If the lists do not align, or a reward is not finite.
    """
    if not 0.0 <= rubric_weight <= 1.0:
        raise ConfigError(f"algorithm.rubric_weight is {rubric_weight}; it must be in [0, 1]")
    if len(rewards) != len(outcomes):
        raise ValueError(f"{len(rewards)} rewards but verdicts of {len(outcomes)} trajectories")
    advantages = task_advantages(rewards, std=std, eps=eps)
    rubrics = rubric_advantages(outcomes, std=std, eps=eps, pair_ids=pair_ids)
    if not rubrics.pair_ids:
        return advantages
    for j in np.flatnonzero(rubrics.applicable.any(axis=0)):
        mean = math.fsum(rubrics.values[:, j]) / len(rubrics.pair_ids)
        advantages[j] = (1.0 - rubric_weight) * advantages[j] + rubric_weight * mean
    return advantages


def _normalized(values: NDArray[np.float64], *, std: str, eps: float) -> NDArray[np.float64]:
    if _all_equal(values):
        return np.zeros_like(values)
    count = len(values)
    deviation = values - math.fsum(values) / count
    divisor = count - 1 if std == "sample" else count
    sigma = math.sqrt(math.fsum(deviation**2) / divisor)
    return deviation / (sigma + eps)


def _all_equal(values: NDArray[np.float64]) -> bool:
    return bool((values == values[:1]).all())


def _check(std: str, eps: float) -> None:
    if std not in STD_KINDS:
        raise ConfigError(f"algorithm.std is {std!r}; choose one of {', '.join(STD_KINDS)}")
    if not eps > 0.0:
        raise ConfigError(f"algorithm.epsilon is {eps}; it must be above 0")
