"""Intervals, paired tests and corrections, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.study.statistics import compare, estimate, holm, steps_to_reach


def test_interval_by_hand() -> None:
    """Student's t for 2 degrees of freedom at 95 % is 4.3027; std 1, n 3."""
    value = estimate([1.0, 2.0, 3.0])
    assert (value.mean, value.std, value.count) == (2.0, 1.0, 3)
    assert value.half_width == pytest.approx(4.30265273 / math.sqrt(3), abs=1e-7)
    assert (value.low, value.high) == pytest.approx((2 - 2.4841377, 2 + 2.4841377), abs=1e-6)


def test_one_value_has_no_interval() -> None:
    value = estimate([7.0])
    assert (value.mean, value.std) == (7.0, 0.0)
    assert math.isnan(value.low)
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


def test_pairs_by_seed() -> None:
    """Differences 2, 4, 6: mean 4, std 2, t = 4 / (2/√3) = 3.4641, p = 0.07418 (2 df)."""
    comparison = compare({1: 12.0, 2: 14.0, 3: 16.0, 9: 0.0}, {1: 10.0, 2: 10.0, 3: 10.0, 8: 5.0})
    assert comparison is not None
    assert comparison.seeds == (1, 2, 3)
    assert (comparison.difference.mean, comparison.difference.std) == (4.0, 2.0)
    assert comparison.p_t == pytest.approx(0.0741799, abs=1e-6)
    assert comparison.p_signs == 2 / 8


def test_no_common_seed() -> None:
    assert compare({1: 1.0}, {2: 1.0}) is None


def test_equal_differences_have_no_t_test() -> None:
    comparison = compare({1: 3.0, 2: 4.0}, {1: 1.0, 2: 2.0})
    assert comparison is not None
    assert math.isnan(comparison.p_t)
    assert comparison.p_signs == 0.5


def test_eight_seeds_of_one_sign_are_as_unlikely_as_it_gets() -> None:
    comparison = compare({n: n + 1.0 for n in range(8)}, {n: n / 2 for n in range(8)})
    assert comparison is not None
    assert comparison.p_signs == 2 / 256


def test_holm_by_hand() -> None:
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": math.nan})
    assert corrected["a"] == pytest.approx(0.03)
    assert corrected["c"] == corrected["b"] == pytest.approx(0.06)
    assert math.isnan(corrected["d"])


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=6))
def test_holm_never_lowers_and_keeps_the_order(p_values: dict[str, float]) -> None:
    corrected = holm(p_values)
    order = sorted(p_values, key=lambda name: p_values[name])
    assert all(p_values[name] <= corrected[name] <= 1 for name in p_values)
    assert [corrected[name] for name in order] == sorted(corrected.values())


@pytest.mark.parametrize(
    ("level", "step"), [(10, 0.0), (5, 0.0), (20, 10.0), (40, 30.0), (50, 40.0), (60, None)]
)
def test_steps_to_reach_a_level(level: float, step: float | None) -> None:
    assert steps_to_reach({0: 10.0, 20: 30.0, 40: 50.0}, level) == step


def test_the_first_time_counts_even_if_the_curve_falls_again() -> None:
    assert steps_to_reach({0: 0.0, 10: 50.0, 20: 20.0}, 25.0) == 5.0
    assert steps_to_reach({}, 1.0) is None
