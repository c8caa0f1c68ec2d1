"""Eq. 17: among the successes of a group, shorter trajectories earn more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arise.errors import ConfigError


def length_regularized(
    rewards: Sequence[float] | NDArray[np.float64],
    lengths: Sequence[int],
    *,
    alpha: float,
    length_threshold: int,
    eps: float,
) -> NDArray[np.float64]:
    """Shape the rewards of one group by trajectory length (Eq. 17).

    Every reward above 0 is multiplied by

        1 + α (1 − 2 (ℓ_j − ℓ_min) / (ℓ_max − ℓ_min + ε)),

    with ℓ_min and ℓ_max over the whole group, failures included. Nothing changes unless the group
    has a reward above 0 and one that is not, max ℓ exceeds the threshold, and the ℓ differ.
    Rewards of 0 and below are never touched, so the order of failures cannot invert.

    Example: rewards [1, 1, 1, 0] with ℓ [1000, 10500, 20000, 20000], α = 0.5 and a threshold of
    16384 give [1.5, 1, 0.5, 0].

    Args:
        rewards: float[G'], raw rewards R_task of the group's survivors.
        lengths: int[G'], ℓ_j of the same trajectories: generated tokens over all rows.
        alpha: α, largest relative bonus and malus, in [0, 1); 0 switches the shaping off.
        length_threshold: L_th in tokens; the longest trajectory must exceed it.
        eps: ε of the denominator.

    Returns:
        float64[G'], the shaped rewards.

    Raises:
        ConfigError: If α, the threshold or ε is out of range.
        ValueError: If the arrays do not align, or a reward is not finite.
    """
    if not 0.0 <= alpha < 1.0:
        raise ConfigError(
            f"algorithm.length_alpha is {alpha}; it must be in [0, 1): "
            "at 1 the longest success would earn no more than a failure"
        )
    if length_threshold < 0:
        raise ConfigError(
            f"algorithm.length_threshold_tokens is {length_threshold}; it must be 0 or more tokens"
        )
    if not eps > 0.0:
        raise ConfigError(f"algorithm.epsilon is {eps}; it must be above 0")
    shaped = finite_rewards(rewards)
    if len(lengths) != len(shaped):
        raise ValueError(f"{len(shaped)} rewards but {len(lengths)} lengths")
    positive = shaped > 0.0
    if not positive.any() or positive.all():
        return shaped
    length = np.asarray(lengths, dtype=np.float64)
    shortest, longest = length.min(), length.max()
    if longest <= length_threshold or shortest == longest:
        return shaped
    factor = 1.0 + alpha * (1.0 - 2.0 * (length - shortest) / (longest - shortest + eps))
    shaped[positive] *= factor[positive]
    return shaped


def finite_rewards(rewards: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Copy rewards to float64, whatever their type (bf16 would round a baseline away).

    Args:
        rewards: float[G'].

    Returns:
        float64[G'], a new array.

    Raises:
        ValueError: If they are not a list of finite numbers.
    """
    values = np.array(rewards, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"rewards must be a list of finite numbers, not {rewards!r}")
    return values
