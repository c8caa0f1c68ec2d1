"""Rewards of the baselines that have their own."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.algorithms.credit import CreditOptions, assign_credit
from arise.algorithms.scores import points_score, score_advantages, weighted_score
from arise.errors import ConfigError
from arise.types import (
    Criterion,
    FinishReason,
    Iteration,
    Outcome,
    Review,
    SampledTask,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Verdict,
)

PASS, FAIL, NA = Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE
TASK = Task(id="t", instruction="", path=Path("t"), tests=Path("t"))


def test_points_are_met_over_possible() -> None:
    assert points_score({1: PASS, 2: FAIL, 3: NA, 4: PASS}) == 2 / 3
    assert points_score({1: NA}) is None
    assert points_score({}) is None


def test_points_of_pairs_that_left_do_not_count() -> None:
    assert points_score({1: PASS, 2: FAIL}, pair_ids=[1]) == 1.0
    assert points_score({2: FAIL}, pair_ids=[1]) is None


def test_weighted_score_by_hand() -> None:
    """(5·1 + 2 + 0 − 1) / (5 + 2 + 3): a met mistake costs, a missed criterion stays possible."""
    weights = {1: 2.0, 2: 3.0, 3: -1.0, 4: 4.0}
    outcomes = {1: PASS, 2: FAIL, 3: PASS, 4: NA}
    assert weighted_score(weights, outcomes, is_success=True, outcome_weight=5.0) == 0.6
    assert weighted_score(weights, outcomes, is_success=False, outcome_weight=5.0) == 0.1


def test_without_criteria_the_outcome_is_the_score() -> None:
    assert weighted_score({}, {}, is_success=True, outcome_weight=5.0) == 1.0
    assert weighted_score({}, {}, is_success=False, outcome_weight=5.0) == 0.0


def test_an_invalid_verdict_is_no_fail() -> None:
    assert weighted_score({1: 5.0}, {}, is_success=True, outcome_weight=5.0) == 1.0


@given(st.lists(st.none() | st.floats(0, 1), max_size=8))
def test_scores_are_normalized_among_those_that_have_one(scores: list[float | None]) -> None:
    advantages = score_advantages(scores, std="sample", eps=1e-9)
    assert abs(math.fsum(advantages)) < 1e-6
    assert all(a == 0.0 for a, s in zip(advantages, scores, strict=True) if s is None)


def test_advantages_by_hand() -> None:
    half = math.sqrt(0.5)
    advantages = score_advantages([1.0, None, 0.0], std="sample", eps=1e-9)
    assert advantages == pytest.approx([half, 0.0, -half])


def trajectory(rollout: int, reward: float, num_tokens: int) -> Trajectory:
    turn = Turn(
        prompt_token_ids=(1,),
        token_ids=(2,) * num_tokens,
        logprobs=(-1.0,) * num_tokens,
        policy_versions=(0,) * num_tokens,
        text="",
        starts_row=True,
    )
    return Trajectory(
        task_id="t",
        rollout=rollout,
        turns=(turn,),
        finish_reason=FinishReason.SUBMITTED,
        task_reward=reward,
    )


def iteration(outcomes: list[dict[int, Outcome]]) -> Iteration:
    """Rewards 1, 0, 1 with lengths that Eq. 17 would shape."""
    slots = (trajectory(0, 1.0, 10), trajectory(1, 0.0, 10), trajectory(2, 1.0, 40))
    reviews: list[Review | None] = [
        Review(verdicts=tuple(Verdict(pair_id=i, outcome=o) for i, o in own.items()))
        for own in outcomes
    ]
    return Iteration(
        index=0,
        samples=[SampledTask(task=TASK)],
        groups=[TrajectoryGroup(task=TASK, slots=slots)],
        reviews=[reviews],
        criteria=[(Criterion(id=1, text="a", weight=5.0, quote="q"),)],
    )


def credit(reward: str, **changes: float) -> CreditOptions:
    return CreditOptions(
        rubric_weight=0.3,
        std="sample",
        epsilon=1e-9,
        length_alpha=0.5,
        length_threshold_tokens=20,
        reward=reward,
        **changes,
    )


def test_points_replace_the_verifiers_reward_and_eq_17() -> None:
    """Scores 0.5, 1 and none: the solved but unjudged rollout leaves the statistics."""
    batch = iteration([{1: PASS, 2: FAIL}, {1: PASS}, {1: NA}])
    assign_credit(batch, credit("points"))
    assert batch.shaped_rewards == [[0.5, 1.0, None]]
    half = math.sqrt(0.5)
    assert batch.advantages[0] == pytest.approx([-half, half, 0.0])


def test_criteria_replace_the_verifiers_reward_and_eq_17() -> None:
    batch = iteration([{1: FAIL}, {1: PASS}, {1: PASS}])
    assign_credit(batch, credit("criteria", outcome_weight=5.0))
    assert batch.shaped_rewards == [[0.5, 0.5, 1.0]]
    assert batch.advantages[0][2] == pytest.approx(2 / math.sqrt(3))


def test_an_unknown_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match="verifier, points, criteria"):
        credit("fame")
