"""Eq. 9, 10 and 20 by hand-computed numbers."""

import numpy as np
import pytest

from arise.curriculum.evidence import COLUMN, Evidence, group_evidence
from arise.errors import ConfigError
from arise.types import Capability, Outcome

P, F, NA = Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE
EXECUTION, DEBUGGING = Capability.EXECUTION, Capability.DEBUGGING


def make_evidence(*tags: str) -> Evidence:
    evidence = Evidence(tags, gamma_obs=0.2, gamma_unobs=0.999)
    evidence.add_pair(1, EXECUTION)
    evidence.add_pair(2, EXECUTION)
    evidence.add_pair(3, DEBUGGING)
    return evidence


def test_group_evidence_splits_each_trajectory_over_its_applicable_rubrics():
    capabilities = {1: EXECUTION, 2: EXECUTION, 3: DEBUGGING, 4: EXECUTION}
    outcomes = [
        {1: P, 2: F, 3: F},  # u_execution = 1/2 over two rubrics, u_debugging = 0
        {1: P, 2: NA},  # u_execution = 1 over one rubric
        {},  # judge failed: adds nothing
        {1: F, 2: F, 4: P},  # u_execution = 1/3
    ]
    evidence = group_evidence(outcomes, capabilities)
    assert list(evidence) == [1, 2, 3, 4]
    assert evidence[1] == pytest.approx((1.5, 1 / 3), abs=1e-15)
    assert evidence[2] == pytest.approx((0.0, 0.5 + 1 / 3), abs=1e-15)
    assert evidence[3] == (0.0, 1.0)
    assert evidence[4] == pytest.approx((1 / 3, 0.0), abs=1e-15)
    # Each trajectory with an applicable rubric of c adds exactly one unit to c.
    assert sum(evidence[i][0] + evidence[i][1] for i in (1, 2, 4)) == pytest.approx(3.0)


def test_group_evidence_leaves_out_rubrics_that_left_the_pool():
    assert group_evidence([{1: P, 9: F}], {1: EXECUTION}) == {1: (1.0, 0.0)}


def test_all_not_applicable_is_no_observation():
    assert group_evidence([{1: NA}, {1: NA}], {1: EXECUTION}) == {}


def test_S05_decay_worked_numbers():
    evidence = make_evidence("ml")
    evidence.observe(1, ["ml"], {1: (10.0, 4.0)})
    assert evidence.current(6, "ml", 1)[0] == pytest.approx(9.9500999, abs=5e-8)
    assert evidence.current(1, "ml", 1) == (10.0, 4.0), "querying rewrites nothing"
    evidence.observe(4, ["ml"], {1: (1.0, 0.0)})
    assert evidence.current(4, "ml", 1)[0] == pytest.approx(2.996002, abs=1e-12)
    assert evidence.current(4, "ml", 1)[1] == pytest.approx(4 * 0.2 * 0.999**2, abs=1e-12)


def test_S05_same_version_adds_without_decay():
    evidence = make_evidence("ml")
    evidence.observe(5, ["ml"], {1: (10.0, 0.0)})
    evidence.observe(5, ["ml"], {1: (1.0, 2.0)})
    assert evidence.current(5, "ml", 1) == (11.0, 2.0)


def test_next_version_decays_by_the_observed_factor_only():
    evidence = make_evidence("ml")
    evidence.observe(5, ["ml"], {1: (10.0, 0.0)})
    evidence.observe(6, ["ml"], {1: (1.0, 0.0)})
    assert evidence.current(6, "ml", 1) == (3.0, 0.0)


def test_an_observation_decays_its_own_rubric_and_tag_only():
    evidence = make_evidence("ml", "db")
    evidence.observe(1, ["ml", "db"], {1: (10.0, 0.0), 2: (6.0, 0.0)})
    evidence.observe(2, ["ml"], {1: (1.0, 0.0)})
    assert evidence.current(2, "ml", 1)[0] == 3.0
    assert evidence.current(2, "ml", 2)[0] == pytest.approx(5.994)
    assert evidence.current(2, "db", 1)[0] == pytest.approx(9.99)


def test_every_tag_of_a_task_gets_the_contribution_in_full():
    evidence = make_evidence("db", "ml", "web")
    evidence.observe(1, ["db", "web"], {1: (2.0, 1.0), 3: (0.0, 3.0)})
    totals = evidence.totals(1)
    assert totals.shape == (3, 5, 2)
    assert totals[0, COLUMN[EXECUTION]].tolist() == [2.0, 1.0]
    assert totals[2, COLUMN[EXECUTION]].tolist() == [2.0, 1.0]
    assert totals[2, COLUMN[DEBUGGING]].tolist() == [0.0, 3.0]
    assert not totals[1].any()


def test_totals_sum_current_values_over_the_rubrics_of_a_capability():
    evidence = make_evidence("ml")
    evidence.observe(1, ["ml"], {1: (10.0, 0.0)})
    evidence.observe(4, ["ml"], {2: (1.0, 5.0)})
    total = evidence.totals(6)[0, COLUMN[EXECUTION]]
    assert total[0] == pytest.approx(10 * 0.999**5 + 0.999**2, abs=1e-12)
    assert total[1] == pytest.approx(5 * 0.999**2, abs=1e-12)


def test_forgetting_a_rubric_leaves_the_others_untouched():
    evidence = make_evidence("ml")
    evidence.observe(1, ["ml"], {1: (0.5, 0.5), 2: (0.25, 0.75)})
    evidence.forget(1)
    assert evidence.totals(1)[0, COLUMN[EXECUTION]].tolist() == [0.25, 0.75]


def test_state_keeps_evidence_of_tags_that_no_task_carries_any_more():
    evidence = make_evidence("ml", "old")
    evidence.observe(3, ["ml", "old"], {1: (0.1, 0.2)})
    resumed = make_evidence("ml", "new")
    resumed.load_state_dict(evidence.state_dict())
    assert resumed.current(3, "old", 1) == (0.1, 0.2)
    assert resumed.current(3, "new", 1) == (0.0, 0.0)
    np.testing.assert_array_equal(resumed.totals(7)[0], evidence.totals(7)[0])


@pytest.mark.parametrize(("observed", "unobserved"), [(-0.1, 0.9), (1.1, 0.9), (0.2, 0.0)])
def test_decay_out_of_range_names_the_key(observed, unobserved):
    with pytest.raises(ConfigError, match=r"curriculum\.gamma_(un)?obs"):
        Evidence(["ml"], gamma_obs=observed, gamma_unobs=unobserved)
