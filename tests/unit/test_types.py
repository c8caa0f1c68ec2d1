from pathlib import Path

import pytest

from arise.types import (
    FailureKind,
    FinishReason,
    Outcome,
    Review,
    RolloutFailure,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Verdict,
)

TASK = Task(id="t", instruction="do it", path=Path("t"), tests=Path("t/tests"))


def make_turn(prompt: list[int], generated: list[int], *, starts_row: bool = False) -> Turn:
    return Turn(
        prompt_token_ids=tuple(prompt),
        token_ids=tuple(generated),
        logprobs=tuple(-0.5 for _ in generated),
        policy_versions=tuple(3 for _ in generated),
        text="",
        starts_row=starts_row,
    )


def make_trajectory(*turns: Turn, reward: float = 1.0, rollout: int = 0) -> Trajectory:
    return Trajectory(
        task_id="t",
        rollout=rollout,
        turns=turns,
        finish_reason=FinishReason.SUBMITTED,
        task_reward=reward,
    )


def test_an_unbroken_history_is_one_row() -> None:
    trajectory = make_trajectory(make_turn([1, 2], [3], starts_row=True), make_turn([4], [5, 6]))
    (row,) = trajectory.rows
    assert row.token_ids == (1, 2, 3, 4, 5, 6)
    assert row.generated_mask == (False, False, True, False, True, True)
    assert row.logprobs == (0.0, 0.0, -0.5, 0.0, -0.5, -0.5)
    assert row.policy_versions == (-1, -1, 3, -1, 3, 3)


def test_rewritten_history_starts_new_rows_and_tokens_count_over_all() -> None:
    trajectory = make_trajectory(
        make_turn([1], [2, 3], starts_row=True),
        make_turn([7, 8], [9], starts_row=True),
        make_turn([4], [5]),
    )
    assert [row.token_ids for row in trajectory.rows] == [(1, 2, 3), (7, 8, 9, 4, 5)]
    assert trajectory.num_generated_tokens == 4


def test_an_episode_without_a_call_has_no_row() -> None:
    assert make_trajectory().rows == ()
    assert make_trajectory().num_generated_tokens == 0


@pytest.mark.parametrize(("reward", "expected"), [(1.0, True), (0.999, False), (0.0, False)])
def test_success_needs_the_full_reward(reward: float, expected: bool) -> None:
    assert make_trajectory(reward=reward).is_success is expected


def test_durations_are_not_part_of_equality() -> None:
    turn = make_turn([1], [2])
    slow = Trajectory(
        task_id="t",
        rollout=0,
        turns=(turn,),
        finish_reason=FinishReason.SUBMITTED,
        task_reward=1.0,
        durations_s={"agent": 3.0},
    )
    assert slow == make_trajectory(turn)


def test_a_group_keeps_slots_and_knows_what_it_lost() -> None:
    lost = RolloutFailure(task_id="t", rollout=1, kind=FailureKind.SANDBOX, message="died")
    first, last = make_trajectory(rollout=0), make_trajectory(rollout=2)
    group = TrajectoryGroup(task=TASK, slots=(first, lost, last))
    assert group.trajectories == (first, last)
    assert group.failures == (lost,)
    assert not group.is_complete
    assert TrajectoryGroup(task=TASK, slots=(first, last)).is_complete


def test_a_missing_verdict_is_invalid_and_an_unjudged_pair_is_not() -> None:
    review = Review(
        judged_pair_ids=(2, 5, 7),
        verdicts=(
            Verdict(pair_id=2, outcome=Outcome.PASS),
            Verdict(pair_id=7, outcome=Outcome.FAIL),
        ),
    )
    assert review.outcomes == {2: Outcome.PASS, 7: Outcome.FAIL}
    assert review.num_invalid == 1
