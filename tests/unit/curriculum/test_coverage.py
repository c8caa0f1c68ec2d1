"""Eq. 11 and 12, a_x, f_x and quarantine."""

import logging
from pathlib import Path

import pytest

from arise.curriculum.coverage import Coverage, discovery_probability
from arise.curriculum.ledger import TaskLedger
from arise.curriculum.task_table import TaskTable
from arise.errors import ConfigError
from arise.types import Capability, Outcome, Task

P, F, NA = Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE


def make_table(*ids: str) -> TaskTable:
    return TaskTable([Task(id=i, instruction="", path=Path(), tests=Path()) for i in ids])


def test_coverage_averages_over_tasks_and_capabilities_with_rubrics():
    coverage = Coverage(make_table("a", "b"))
    assert coverage.value() == 0.0
    coverage.add_pair(1, Capability.EXECUTION)
    coverage.add_pair(2, Capability.EXECUTION)
    coverage.add_pair(3, Capability.EFFICIENCY)
    coverage.observe("a", 2, [{1: P, 3: NA}, {1: F, 2: P, 3: NA}])
    # a: 1 of 2 execution (rubric 2 lacks a verdict), 1 of 1 efficiency; b: nothing.
    assert coverage.covered("a") == {1, 3}
    assert coverage.value() == (0.5 + 1.0) / 4
    assert coverage.outstanding().tolist() == [True, True]
    coverage.observe("a", 2, [{2: P}, {2: P}])
    assert coverage.covered("a") == {1, 2, 3}, "an entry never expires"
    assert coverage.value() == 0.5
    assert coverage.outstanding().tolist() == [False, True]


def test_a_new_rubric_renews_the_need_and_a_retired_one_takes_its_entries_along():
    coverage = Coverage(make_table("a"))
    coverage.add_pair(1, Capability.EXECUTION)
    coverage.observe("a", 1, [{1: P}])
    coverage.add_pair(2, Capability.EXECUTION)
    assert (coverage.value(), coverage.outstanding().tolist()) == (0.5, [True])
    coverage.forget(2)
    assert (coverage.value(), coverage.outstanding().tolist()) == (1.0, [False])
    coverage.forget(1)
    assert (coverage.value(), coverage.outstanding().tolist()) == (0.0, [True])
    assert coverage.covered("a") == frozenset()


def test_verdicts_of_rubrics_outside_the_pool_and_short_groups_cover_nothing():
    coverage = Coverage(make_table("a"))
    coverage.add_pair(1, Capability.EXECUTION)
    coverage.observe("a", 2, [{1: P}])
    coverage.observe("a", 1, [{9: P}])
    assert coverage.covered("a") == frozenset()


def test_tasks_that_left_keep_their_entries_but_do_not_count():
    before = Coverage(make_table("a", "gone"))
    before.add_pair(1, Capability.EXECUTION)
    before.observe("gone", 1, [{1: P}])
    after = Coverage(make_table("a", "new"))
    after.add_pair(1, Capability.EXECUTION)
    after.load_state_dict(before.state_dict())
    assert after.value() == 0.0
    assert after.covered("gone") == {1}
    assert after.outstanding().tolist() == [True, True]


@pytest.mark.parametrize(("coverage", "rho"), [(0.0, 1.0), (0.25, 0.75), (0.95, 0.1), (1.0, 0.1)])
def test_discovery_probability(coverage, rho):
    assert discovery_probability(coverage, 0.1) == rho


def test_attempts_and_failures_both_weigh_and_never_reset():
    ledger = TaskLedger(make_table("a", "b"), quarantine_after=3)
    ledger.record("a", is_complete=True, was_sent_to_evaluation=True)
    ledger.record("a", is_complete=False, was_sent_to_evaluation=True)
    ledger.record("a", is_complete=True, was_sent_to_evaluation=False)
    assert ledger.num_evaluations == {"a": 1}
    assert ledger.num_failures == {"a": 1}
    assert ledger.burden.tolist() == [2, 0]


def test_quarantine_after_failures_in_a_row_only(caplog):
    ledger = TaskLedger(make_table("a", "b"), quarantine_after=3)
    for is_complete in (False, False, True, False, False):
        ledger.record("a", is_complete=is_complete, was_sent_to_evaluation=True)
    assert ledger.quarantined == ()
    with caplog.at_level(logging.WARNING):
        ledger.record("a", is_complete=False, was_sent_to_evaluation=True)
    assert ledger.quarantined == ("a",)
    assert "task a is set aside for this run: 3 infrastructure failures in a row" in caplog.text
    assert ledger.available(["unknown"]).tolist() == [False, True]
    ledger.record("a", is_complete=True, was_sent_to_evaluation=True)
    assert ledger.quarantined == ("a",), "set aside for the run, a late group changes nothing"
    resumed = TaskLedger(make_table("b", "a"), quarantine_after=3)
    resumed.load_state_dict(ledger.state_dict())
    assert resumed.available([]).tolist() == [True, False]
    assert resumed.burden.tolist() == [0, 7]


def test_draw_entropy():
    ledger = TaskLedger(make_table("a", "b", "c", "d"), quarantine_after=3)
    assert ledger.draw_entropy() == 0.0
    for task_id in "abab":
        ledger.record_draw(task_id)
    assert ledger.draw_entropy() == pytest.approx(0.5)  # ln 2 / ln 4


@pytest.mark.parametrize(
    ("ids", "message"), [((), "training set is empty"), (("a", "b", "a"), "first is 'a'")]
)
def test_impossible_task_sets(ids, message):
    with pytest.raises(ConfigError, match=message):
        make_table(*ids)


def test_quarantine_after_out_of_range():
    with pytest.raises(ConfigError, match=r"curriculum\.quarantine_after .* got 0"):
        TaskLedger(make_table("a"), quarantine_after=0)
