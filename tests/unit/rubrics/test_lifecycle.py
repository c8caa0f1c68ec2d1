"""The table of Eq. 5, 7, 8, its bounds, and the paper's four worked cases."""

import pytest

from arise.rubrics.lifecycle import Action, decide, pass_rate
from arise.rubrics.pair import SkillState
from arise.rubrics.pool import Refinement, RubricPool
from arise.rubrics.proposals import PairProposal
from arise.types import Outcome, Verdict

HIDDEN, ACTIVE = SkillState.HIDDEN, SkillState.ACTIVE


def action_of(state: SkillState, num_passes: int, num_applicable: int, **options: bool) -> Action:
    return decide(
        state,
        num_passes=num_passes,
        num_applicable=num_applicable,
        eta_low=0.3,
        eta_high=0.9,
        **options,
    )


@pytest.mark.parametrize(
    ("num_passes", "num_applicable", "if_hidden", "if_active"),
    [
        (0, 0, Action.KEEP, Action.KEEP),
        (0, 5, Action.ACTIVATE, Action.REFINE),
        (3, 10, Action.ACTIVATE, Action.REFINE),
        (301, 1000, Action.KEEP, Action.HIDE),
        (899, 1000, Action.KEEP, Action.HIDE),
        (9, 10, Action.RETIRE, Action.RETIRE),
        (5, 5, Action.RETIRE, Action.RETIRE),
    ],
)
def test_table(num_passes: int, num_applicable: int, if_hidden: Action, if_active: Action) -> None:
    assert action_of(HIDDEN, num_passes, num_applicable) is if_hidden
    assert action_of(ACTIVE, num_passes, num_applicable) is if_active


@pytest.mark.parametrize("scale", [1, 3, 7, 11, 101, 2560])
def test_bounds_are_met_exactly_at_every_sample_size(scale: int) -> None:
    assert pass_rate(3 * scale, 10 * scale) == 0.3
    assert pass_rate(9 * scale, 10 * scale) == 0.9
    assert action_of(HIDDEN, 3 * scale, 10 * scale) is Action.ACTIVATE
    assert action_of(HIDDEN, 9 * scale, 10 * scale) is Action.RETIRE
    assert action_of(HIDDEN, 3 * scale + 1, 10 * scale) is Action.KEEP
    assert action_of(HIDDEN, 9 * scale - 1, 10 * scale) is Action.KEEP


def test_frozen_pool_hides_where_it_would_retire() -> None:
    assert action_of(HIDDEN, 10, 10, frozen=True) is Action.KEEP
    assert action_of(ACTIVE, 10, 10, frozen=True) is Action.HIDE
    assert action_of(ACTIVE, 5, 10, frozen=True) is Action.HIDE
    assert action_of(ACTIVE, 3, 10, frozen=True) is Action.REFINE
    assert action_of(HIDDEN, 3, 10, frozen=True) is Action.ACTIVATE


def run_case(created_at: int, rates: dict[int, int]) -> tuple[RubricPool, list[tuple[int, str]]]:
    """A pair's life: per mille pass rate at each update; 500 where the paper names none."""
    pool = RubricPool(max_pairs=64, max_new_pairs=8, max_text_chars=4000)
    proposal = PairProposal(
        title="case",
        capability="verification",
        applicability="a",
        fail_condition="f",
        pass_condition="p",
        skill="s",
    )
    story = []
    for step in range(created_at, 151, 10):
        if step == created_at:
            events = pool.update(step, {}, refinements={}, proposals=[proposal])
        else:
            if 1 not in pool:
                break
            num_passes = rates.get(step, 500)
            for index in range(1000):
                outcome = Outcome.PASS if index < num_passes else Outcome.FAIL
                pool.observe("task", [Verdict(pair_id=1, outcome=outcome)])
            actions = pool.decide(eta_low=0.3, eta_high=0.9)
            texts = {1: Refinement(text="better", num_records=1)}
            events = pool.update(step, actions, refinements=texts, proposals=[])
        story += [(event["step"], event["type"]) for event in events if event["type"] != "kept"]
    return pool, story


def test_T7_guidance_is_activated_and_hidden_and_the_pair_stays() -> None:
    pool, story = run_case(10, {20: 277, 30: 343, 100: 674, 150: 660})
    assert story == [(10, "created"), (20, "activated"), (30, "hidden")]
    assert (pool[1].skill.state, pool[1].skill.text, pool[1].skill.revision) == (HIDDEN, "s", 0)
    assert [e.num_passes for e in pool[1].history if e.step in (100, 150)] == [674, 660]


def test_T8_guidance_is_activated_and_hidden_then_the_pair_retires() -> None:
    pool, story = run_case(40, {50: 257, 60: 432, 100: 972})
    assert story == [(40, "created"), (50, "activated"), (60, "hidden"), (100, "retired")]
    assert len(pool) == 0


def test_T9_the_skill_stays_hidden_and_the_pair_stays() -> None:
    pool, story = run_case(80, {90: 678, 120: 896, 150: 811})
    assert story == [(80, "created")]
    assert pool[1].skill.state is HIDDEN


def test_T10_the_pair_retires_without_ever_being_active() -> None:
    pool, story = run_case(130, {140: 965})
    assert story == [(130, "created"), (140, "retired")]
    assert len(pool) == 0
