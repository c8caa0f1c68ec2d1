"""Eq. 15 and 16 by hand-computed values."""

import math

import numpy as np
import pytest
import torch

from arise.algorithms.advantages import combined_advantages, rubric_advantages, task_advantages
from arise.errors import ConfigError
from arise.types import Outcome

PASS, FAIL, NA = Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE
EPS = 1e-9
HALF = math.sqrt(0.5)


def task(rewards, std="sample"):
    return task_advantages(rewards, std=std, eps=EPS)


def combine(rewards, outcomes, *, rubric_weight=0.3, std="sample", pair_ids=None):
    return combined_advantages(
        rewards, outcomes, rubric_weight=rubric_weight, std=std, eps=EPS, pair_ids=pair_ids
    )


@pytest.mark.parametrize(
    ("std", "success", "failure"),
    [("sample", 2.474874, -0.353553), ("population", 2.645751, -0.377964)],
)
def test_one_success_in_eight(std, success, failure):
    expected = [success] + [failure] * 7
    np.testing.assert_allclose(task([1, 0, 0, 0, 0, 0, 0, 0], std), expected, atol=1e-6)


@pytest.mark.parametrize("reward", [0.1, 0.2, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("std", ["sample", "population"])
def test_A01_equal_fractional_rewards_give_exactly_zero(reward, std):
    assert task([reward] * 8, std).tolist() == [0.0] * 8


@pytest.mark.parametrize(
    ("std", "expected"),
    [("sample", [-0.5, -0.5, -0.5, 1.5]), ("population", [-0.57735] * 3 + [1.73205])],
)
def test_A03_statistics_ignore_the_dtype_of_the_rewards(std, expected):
    rewards = [1, 1, 1, 1.0078125]
    for given in (rewards, torch.tensor(rewards, dtype=torch.bfloat16).tolist()):
        result = task(given, std)
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, expected, atol=1e-5)
    np.testing.assert_allclose(task([1, 0, 0, 0]), [1.5, -0.5, -0.5, -0.5], atol=1e-8)


def test_A05_a_trajectory_counts_once_however_many_rows_it_has():
    np.testing.assert_allclose(task([1, 0], "population"), [1, -1], atol=1e-8)
    np.testing.assert_allclose(task([1, 0]), [HALF, -HALF], atol=1e-8)


@pytest.mark.parametrize(("std", "size"), [("sample", 0.7070), ("population", 0.9998)])
def test_A07_small_differences_are_neither_lost_nor_floored(std, size):
    assert task([0.95] * 7, std).tolist() == [0.0] * 7
    np.testing.assert_allclose(task([1.0, 1.00001], std), [-size, size], atol=1e-4)


def test_a_single_survivor_and_no_survivor():
    assert task([1.0]).tolist() == [0.0]
    assert task([]).tolist() == []
    assert combine([1.0], [{1: PASS}]).tolist() == [0.0]
    assert combine([], []).tolist() == []


def test_rubric_advantages_are_over_applicable_verdicts_only():
    outcomes = [
        {5: PASS, 2: PASS, 9: PASS, 4: NA},
        {5: FAIL, 2: PASS, 9: NA, 4: NA},
        {5: NA, 2: PASS},
        {2: PASS},
    ]
    result = rubric_advantages(outcomes, std="sample", eps=EPS)
    assert result.pair_ids == (5,)
    np.testing.assert_allclose(result.values, [[HALF, -HALF, 0, 0]], atol=1e-8)
    assert result.applicable.tolist() == [[True, True, False, False]]


@pytest.mark.parametrize(
    ("std", "passed", "failed"),
    [("sample", 2 / math.sqrt(3), -1 / math.sqrt(3)), ("population", math.sqrt(2), -HALF)],
)
def test_rubric_advantages_in_both_conventions(std, passed, failed):
    """Verdicts 1, 0, 0: mean 1/3, sum of squares 2/3, so σ is 1/√3 or √2/3."""
    result = rubric_advantages([{3: PASS}, {3: FAIL}, {}, {3: FAIL}], std=std, eps=EPS)
    np.testing.assert_allclose(result.values, [[passed, failed, 0.0, failed]], atol=1e-8)


def test_epsilon_stands_beside_sigma():
    """σ is 1/2 (population), so ε = 1/2 halves ±1."""
    assert task_advantages([1, 0], std="population", eps=0.5).tolist() == [0.5, -0.5]


def test_one_applicable_verdict_has_no_variance():
    np.testing.assert_array_equal(combine([1, 0], [{1: PASS}, {1: NA}]), task([1, 0]))


def test_the_mixture_in_the_population_convention():
    """A_task = ±1, A_rub = ±1 for the two judged ones, |I| = 1; the third has no verdict."""
    outcomes = [{1: FAIL}, {1: PASS}, {}, {1: NA}]
    result = combine([1, 0, 1, 0], outcomes, std="population")
    np.testing.assert_allclose(result, [0.7 - 0.3, -0.7 + 0.3, 1.0, -1.0], atol=1e-8)


def test_no_rubric_varies():
    result = rubric_advantages([{1: PASS}, {1: PASS}, {2: FAIL}], std="sample", eps=EPS)
    assert result.pair_ids == ()
    assert result.values.shape == result.applicable.shape == (0, 3)


def test_mixture_keeps_not_applicable_rubrics_in_the_divisor():
    outcomes = [{1: PASS, 2: PASS}, {1: FAIL, 2: FAIL}, {1: NA, 2: FAIL}, {}]
    rewards = [1, 0, 0, 1]
    a_task = math.sqrt(3) / 2  # deviations of 1/2, sample std of 1/sqrt(3)
    two_thirds, third = 2 / math.sqrt(3), 1 / math.sqrt(3)  # of [1, 0, 0], sample std 1/sqrt(3)
    expected = [
        0.7 * a_task + 0.15 * (HALF + two_thirds),
        -0.7 * a_task + 0.15 * (-HALF - third),
        -0.7 * a_task + 0.15 * (0 - third),
        a_task,
    ]
    np.testing.assert_allclose(combine(rewards, outcomes), expected, atol=1e-8)


def test_a_trajectory_with_verdicts_only_outside_I_keeps_its_task_advantage():
    outcomes = [{1: PASS, 3: PASS}, {1: FAIL, 3: PASS}, {1: NA, 3: PASS}, {3: PASS}]
    result = combine([1, 0, 1, 0], outcomes)
    a_task = math.sqrt(3) / 2
    np.testing.assert_allclose(
        result, [0.7 * a_task + 0.3 * HALF, -0.7 * a_task - 0.3 * HALF, a_task, -a_task], atol=1e-8
    )


def test_J04_without_any_valid_verdict_the_task_advantage_stays_in_full():
    np.testing.assert_array_equal(combine([1, 0, 0], [{}, {}, {}]), task([1, 0, 0]))
    np.testing.assert_array_equal(combine([1, 0], [{1: PASS}, {1: PASS}]), task([1, 0]))


def test_a_group_in_which_everything_failed_learns_from_its_rubrics():
    np.testing.assert_allclose(
        combine([0, 0], [{1: PASS}, {1: FAIL}]), [0.3 * HALF, -0.3 * HALF], atol=1e-8
    )


def test_verdicts_of_retired_pairs_leave_I_and_its_size():
    outcomes = [{1: PASS, 2: FAIL}, {1: FAIL, 2: PASS}]
    np.testing.assert_allclose(combine([1, 0], outcomes), [0.7 * HALF, -0.7 * HALF], atol=1e-8)
    np.testing.assert_allclose(combine([1, 0], outcomes, pair_ids={1}), [HALF, -HALF], atol=1e-8)
    np.testing.assert_array_equal(combine([1, 0], outcomes, pair_ids=()), task([1, 0]))


def test_weights_zero_and_one():
    outcomes = [{1: FAIL}, {1: PASS}]
    np.testing.assert_allclose(combine([1, 0], outcomes, rubric_weight=0.0), task([1, 0]))
    np.testing.assert_allclose(combine([1, 0], outcomes, rubric_weight=1.0), task([0, 1]))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"rubric_weight": 1.5}, "algorithm.rubric_weight"),
        ({"rubric_weight": math.nan}, "algorithm.rubric_weight"),
        ({"std": "unbiased"}, "algorithm.std.*sample, population"),
    ],
)
def test_a_constant_out_of_range_names_its_key(change, key):
    with pytest.raises(ConfigError, match=key):
        combine([1, 0], [{}, {}], **change)


def test_epsilon_must_be_positive():
    with pytest.raises(ConfigError, match=r"algorithm\.epsilon"):
        task_advantages([1, 0], std="sample", eps=0.0)


def test_verdicts_must_align():
    with pytest.raises(ValueError, match="2 rewards but verdicts of 1"):
        combine([1, 0], [{}])
