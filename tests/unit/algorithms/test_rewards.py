"""Eq. 17 by hand-computed values."""

import numpy as np
import pytest

from arise.algorithms.rewards import length_regularized
from arise.errors import ConfigError


def shape(rewards, lengths, *, alpha=0.5, length_threshold=16_384, eps=1e-9):
    return length_regularized(
        rewards, lengths, alpha=alpha, length_threshold=length_threshold, eps=eps
    )


def test_A08_successes_are_scaled_by_length():
    shaped = shape([1, 1, 1, 0], [1000, 10_500, 20_000, 20_000])
    assert shaped.dtype == np.float64
    np.testing.assert_allclose(shaped, [1.5, 1.0, 0.5, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    ("rewards", "lengths"),
    [
        ([1, 1, 1, 1], [1000, 10_500, 20_000, 20_000]),
        ([0, 0, -1, 0], [1000, 10_500, 20_000, 20_000]),
        ([1, 0], [16_384, 100]),
        ([1, 0], [20_000, 20_000]),
        ([1], [20_000]),
        ([], []),
    ],
    ids=["all succeed", "none succeeds", "at the threshold", "equal lengths", "single", "empty"],
)
def test_A08_nothing_changes(rewards, lengths):
    assert shape(rewards, lengths).tolist() == [float(reward) for reward in rewards]


def test_A08_one_token_above_the_threshold():
    np.testing.assert_allclose(shape([1, 0], [16_385, 100]), [0.5, 0.0], atol=1e-12)


def test_A08_negative_rewards_stay_and_failures_set_the_range():
    shaped = shape([0.5, -1, 1], [100, 20_000, 20_000])
    np.testing.assert_allclose(shaped, [0.75, -1.0, 0.5], atol=1e-12)
    shaped = shape([1, 0], [10_000, 20_000])
    np.testing.assert_allclose(shaped, [1.5, 0.0], atol=1e-12)


def test_input_is_not_modified_and_zero_alpha_is_off():
    rewards = np.array([1.0, 0.0])
    shape(rewards, [20_000, 10])
    assert rewards.tolist() == [1.0, 0.0]
    assert shape([1, 0], [20_000, 10], alpha=0.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"alpha": 1.0}, "algorithm.length_alpha"),
        ({"alpha": -0.1}, "algorithm.length_alpha"),
        ({"length_threshold": -1}, "algorithm.length_threshold_tokens"),
        ({"eps": 0.0}, "algorithm.epsilon"),
    ],
)
def test_a_constant_out_of_range_names_its_key(change, key):
    with pytest.raises(ConfigError, match=key):
        shape([1, 0], [1, 2], **change)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_V09_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(ValueError, match="finite"):
        shape([1.0, reward], [1, 2])


def test_lengths_must_align():
    with pytest.raises(ValueError, match="2 rewards but 1 lengths"):
        shape([1, 0], [1])
