"""W07: staleness is by token: the step that trains it minus the version that sampled it."""

from pathlib import Path

import pytest

from arise.algorithms.staleness import oldest_version, staleness_metrics
from arise.types import (
    FailureKind,
    FinishReason,
    RolloutFailure,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

TASK = Task(id="t", instruction="", path=Path(), tests=Path())


def trajectory(*versions: tuple[int, ...]) -> Trajectory:
    """One turn for each tuple of token versions."""
    turns = tuple(
        Turn(
            prompt_token_ids=(1,),
            token_ids=(2,) * len(own),
            logprobs=(-1.0,) * len(own),
            policy_versions=own,
            text="",
        )
        for own in versions
    )
    return Trajectory(
        task_id="t", rollout=0, turns=turns, finish_reason=FinishReason.SUBMITTED, task_reward=0.0
    )


def group(*slots: Trajectory | RolloutFailure) -> TrajectoryGroup:
    return TrajectoryGroup(task=TASK, slots=slots)


LOST = RolloutFailure(task_id="t", rollout=1, kind=FailureKind.SANDBOX, message="gone")


def test_by_hand() -> None:
    groups = [
        group(trajectory((5, 5), (6, 7)), LOST),  # ages 2 2 1 0 at step 7
        group(trajectory((7,)), trajectory((7, 7))),  # ages 0 0 0
    ]
    assert staleness_metrics(groups, 7) == {
        "staleness/token_mean": pytest.approx(5 / 7),
        "staleness/token_max": 2.0,
        "staleness/stale_token_share": pytest.approx(3 / 7),
        "staleness/group_mean": 1.0,
        "staleness/mixed_trajectory_share": pytest.approx(1 / 3),
    }


def test_nothing_generated_has_no_age() -> None:
    assert staleness_metrics([group(LOST)], 3) == {}
    assert oldest_version([]) is None
    assert oldest_version([trajectory((4,)), trajectory((9,), (3, 8))]) == 3
