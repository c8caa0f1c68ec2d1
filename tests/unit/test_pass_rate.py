import math

import pytest

from arise.evaluation.pass_rate import pass_rate

DOMAINS = [(20, 48), (25, 42), (22, 42), (16, 42), (11, 27), (8, 24), (5, 21), (12, 15)]


def attempts_of(solved: int, total: int) -> list[list[bool]]:
    """Tasks with three attempts each, `solved` of `total` attempts successful."""
    flat = [i < solved for i in range(total)]
    return [flat[i : i + 3] for i in range(0, total, 3)]


def test_domains_pool_to_the_overall_rate() -> None:
    rows = [row for solved, total in DOMAINS for row in attempts_of(solved, total)]
    result = pass_rate(rows)
    assert result.num_tasks == 87
    assert result.percent == 100 * 119 / 261
    assert round(result.percent, 1) == 45.6


def test_each_domain_pools_its_attempts() -> None:
    rates = [round(pass_rate(attempts_of(*domain)).percent, 1) for domain in DOMAINS]
    assert rates == [41.7, 59.5, 52.4, 38.1, 40.7, 33.3, 23.8, 80.0]


def test_spread_is_the_sample_deviation_of_unrounded_runs() -> None:
    result = pass_rate([[True, True, False], [True, False, False], [False, False, True]])
    assert result.runs_percent == pytest.approx((200 / 3, 100 / 3, 100 / 3))
    mean = 400 / 9
    expected = math.sqrt(((200 / 3 - mean) ** 2 + 2 * (100 / 3 - mean) ** 2) / 2)
    assert result.run_std == pytest.approx(expected, abs=1e-12)
    assert result.percent == pytest.approx(mean)


def test_one_run_has_no_spread() -> None:
    assert pass_rate([[True], [False]]).run_std == 0.0


def test_an_error_counts_as_failure_and_is_counted() -> None:
    result = pass_rate([[True, None], [None, False]])
    assert (result.percent, result.num_errors) == (25.0, 2)
    assert result.runs_percent == (50.0, 0.0)


@pytest.mark.parametrize("attempts", [[], [[]], [[True], [True, False]]])
def test_ragged_or_empty_attempts_are_refused(attempts: list[list[bool | None]]) -> None:
    with pytest.raises(ValueError, match="equally many attempts"):
        pass_rate(attempts)


def test_rates_by_domain_pool_attempts() -> None:
    result = pass_rate(
        [[True, True], [False, True], [None, False]], domains=["files", "files", None]
    )
    assert result.domains_percent == {"files": 75.0}
    with pytest.raises(ValueError, match="zip"):
        pass_rate([[True]], domains=["a", "b"])


def test_a_rate_is_told_with_its_spread() -> None:
    assert str(pass_rate([[True, False], [True, True]])) == "75.0 ± 35.4 %"
    assert str(pass_rate([[True], [False]])) == "50.0 %"
