import math
from pathlib import Path

import pytest

from arise.algorithms.credit import CreditOptions, assign_credit, training_rows
from arise.types import (
    FailureKind,
    FinishReason,
    Iteration,
    Outcome,
    Review,
    RolloutFailure,
    SampledTask,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Verdict,
)

TASK = Task(id="t", instruction="", path=Path("t"), tests=Path("t"))
LOST = RolloutFailure(task_id="t", rollout=1, kind=FailureKind.SANDBOX, message="died")
HALF = math.sqrt(0.5)


def options(**changes: object) -> CreditOptions:
    values = {
        "rubric_weight": 0.3,
        "std": "sample",
        "epsilon": 1e-9,
        "length_alpha": 0.5,
        "length_threshold_tokens": 16384,
    }
    return CreditOptions(**{**values, **changes})  # type: ignore[arg-type]


def make_trajectory(reward: float, *, rows: int = 1, tokens_per_row: int = 2) -> Trajectory:
    turn = Turn(
        prompt_token_ids=(1,),
        token_ids=(2,) * tokens_per_row,
        logprobs=(-1.0,) * tokens_per_row,
        policy_versions=(0,) * tokens_per_row,
        text="",
        starts_row=True,
    )
    return Trajectory(
        task_id="t",
        rollout=0,
        turns=(turn,) * rows,
        finish_reason=FinishReason.SUBMITTED,
        task_reward=reward,
    )


def make_iteration(*groups: tuple[Trajectory | RolloutFailure, ...]) -> Iteration:
    return Iteration(
        index=0,
        samples=[SampledTask(task=TASK) for _ in groups],
        groups=[TrajectoryGroup(task=TASK, slots=slots) for slots in groups],
    )


def review(**outcomes: str) -> Review:
    verdicts = [Verdict(pair_id=int(k[1:]), outcome=Outcome(v)) for k, v in outcomes.items()]
    return Review(judged_pair_ids=tuple(v.pair_id for v in verdicts), verdicts=tuple(verdicts))


@pytest.mark.parametrize(("std", "size"), [("population", 1.0), ("sample", HALF)])
def test_A05_a_trajectory_counts_once_however_many_rows_it_has(std: str, size: float) -> None:
    iteration = make_iteration((make_trajectory(1.0, rows=3), make_trajectory(0.0)))
    assign_credit(iteration, options(std=std))
    advantages = [weighted.advantage for weighted in training_rows(iteration)]
    assert advantages == pytest.approx([size, size, size, -size], abs=1e-8)


def test_lost_rollouts_have_no_value_and_do_not_count() -> None:
    iteration = make_iteration(
        (make_trajectory(1.0), LOST, make_trajectory(0.0)), (LOST, LOST), (make_trajectory(1.0),)
    )
    assign_credit(iteration, options())
    assert iteration.shaped_rewards == [[1.0, None, 0.0], [None, None], [1.0]]
    first, second, third = iteration.advantages
    assert first[1] is None
    assert [first[0], first[2]] == pytest.approx([HALF, -HALF], abs=1e-8)
    assert second == [None, None]
    assert third == [0.0]
    assert iteration.num_generated_tokens == 6


def test_groups_without_variance_stay_in_the_batch() -> None:
    iteration = make_iteration((make_trajectory(1.0), make_trajectory(1.0)))
    assign_credit(iteration, options())
    assert [weighted.advantage for weighted in training_rows(iteration)] == [0.0, 0.0]
    assert iteration.num_generated_tokens == 4


def test_A08_length_is_summed_over_rows_and_shapes_positive_rewards() -> None:
    lengths = [1000, 10500, 20000, 20000]
    slots = tuple(
        make_trajectory(reward, rows=2, tokens_per_row=length // 2)
        for reward, length in zip((1.0, 1.0, 1.0, 0.0), lengths, strict=True)
    )
    iteration = make_iteration(slots)
    assign_credit(iteration, options())
    assert iteration.shaped_rewards[0] == pytest.approx([1.5, 1.0, 0.5, 0.0], abs=1e-9)
    assert iteration.num_generated_tokens == sum(lengths)


@pytest.mark.parametrize(
    ("std", "inner", "outer"),
    [("sample", 0.387298, 1.161895), ("population", 0.447214, 1.341641)],
)
def test_A08_shaped_rewards_are_normalized_and_verdicts_are_not_shaped(
    std: str, inner: float, outer: float
) -> None:
    """[1.5, 1, 0.5, 0]: deviations ±0.75 and ±0.25, sum of squares 1.25, divided by 3 or 4."""
    lengths = [1000, 10500, 20000, 20000]
    slots = tuple(
        make_trajectory(reward, tokens_per_row=length)
        for reward, length in zip((1.0, 1.0, 1.0, 0.0), lengths, strict=True)
    )
    iteration = make_iteration(slots)
    assign_credit(iteration, options(std=std))
    assert iteration.advantages[0] == pytest.approx([outer, inner, -inner, -outer], abs=1e-6)
    iteration.reviews = [[review(p1="pass"), review(p1="fail"), None, None]]
    assign_credit(iteration, options(std=std, rubric_weight=1.0))
    size = HALF if std == "sample" else 1.0
    assert iteration.advantages[0] == pytest.approx([size, -size, -inner, -outer], abs=1e-6)


def test_A08_length_is_taken_from_survivors_only() -> None:
    """A lost rollout sets no range: of the rest, 20000 is the longest and 10000 the shortest."""
    slots = (
        make_trajectory(1.0, tokens_per_row=10000),
        LOST,
        make_trajectory(0.0, tokens_per_row=20000),
    )
    iteration = make_iteration(slots)
    assign_credit(iteration, options())
    assert iteration.shaped_rewards[0] == [pytest.approx(1.5), None, 0.0]


def test_verdicts_stay_with_their_slot_and_are_mixed_in() -> None:
    iteration = make_iteration((make_trajectory(1.0), LOST, make_trajectory(0.0)))
    iteration.reviews = [[review(p7="fail"), None, review(p7="pass")]]
    assign_credit(iteration, options())
    # 0.7 · ±0.7071 + 0.3/1 · ∓0.7071
    first, lost, last = iteration.advantages[0]
    assert [first, last] == pytest.approx([0.4 * HALF, -0.4 * HALF], abs=1e-8)
    assert lost is None


def test_J04_a_judge_that_failed_leaves_the_task_advantage() -> None:
    iteration = make_iteration((make_trajectory(1.0), make_trajectory(0.0)))
    iteration.reviews = [[Review(judged_pair_ids=(7,), error="HTTP 500"), None]]
    assign_credit(iteration, options())
    assert iteration.advantages[0] == pytest.approx([HALF, -HALF], abs=1e-8)


def test_verdicts_of_retired_pairs_leave_the_mixture() -> None:
    iteration = make_iteration((make_trajectory(0.0), make_trajectory(0.0)))
    iteration.reviews = [[review(p1="pass", p2="fail"), review(p1="fail", p2="pass")]]
    assign_credit(iteration, options(), live_pair_ids={2, 9})
    # All failed, so only the rubric speaks: 0.3 · ∓0.7071 with |I| = 1.
    assert iteration.advantages[0] == pytest.approx([-0.3 * HALF, 0.3 * HALF], abs=1e-8)
    assign_credit(iteration, options())
    assert iteration.advantages[0] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_rows_come_in_slot_order() -> None:
    iteration = make_iteration(
        (make_trajectory(1.0, rows=2), make_trajectory(0.0)), (make_trajectory(1.0), LOST)
    )
    assign_credit(iteration, options())
    advantages = [weighted.advantage for weighted in training_rows(iteration)]
    assert advantages == pytest.approx([HALF, HALF, -HALF, 0.0], abs=1e-8)
