import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from arise.callbacks.display import progress_line
from arise.callbacks.monitoring import rollout_metrics
from arise.callbacks.recorder import truncate_events
from arise.types import (
    FailureKind,
    FinishReason,
    HarnessReport,
    Iteration,
    RolloutFailure,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

TASK = Task(id="t", instruction="", path=Path("t"), tests=Path("t"))
LOST = RolloutFailure(task_id="t", rollout=0, kind=FailureKind.VERIFIER, message="")


def make_trajectory(
    reward: float, *, tokens: int = 4, reason: FinishReason = FinishReason.SUBMITTED
) -> Trajectory:
    turn = Turn(
        prompt_token_ids=(1,),
        token_ids=(2,) * tokens,
        logprobs=(-1.0,) * tokens,
        policy_versions=(0,) * tokens,
        text="",
        starts_row=True,
    )
    return Trajectory(
        task_id="t", rollout=0, turns=(turn,), finish_reason=reason, task_reward=reward
    )


def make_iteration(
    *groups: tuple[Trajectory | RolloutFailure, ...], advantage: float = 0.0
) -> Iteration:
    def values(own: float | None) -> list[list[float | None]]:
        return [
            [
                (slot.task_reward if own is None else own) if isinstance(slot, Trajectory) else None
                for slot in slots
            ]
            for slots in groups
        ]

    return Iteration(
        index=0,
        groups=[TrajectoryGroup(task=TASK, slots=slots) for slots in groups],
        shaped_rewards=values(None),
        advantages=values(advantage),
    )


def test_values() -> None:
    iteration = make_iteration(
        (make_trajectory(1.0, tokens=2), make_trajectory(0.5, tokens=6)),
        (make_trajectory(0.0, reason=FinishReason.TIMEOUT), LOST),
        (make_trajectory(1.0), make_trajectory(1.0)),
        (LOST, LOST),
    )
    iteration.advantages[0] = [0.7, -0.7]
    iteration.shaped_rewards[0] = [1.5, 0.5]
    metrics = rollout_metrics(iteration)
    assert metrics["reward/pass_rate"] == 3 / 5
    assert metrics["reward/task_mean"] == 3.5 / 5
    assert metrics["reward/shaped_mean"] == 4.0 / 5
    assert metrics["reward/all_fail_group_share"] == 1 / 3
    assert metrics["reward/all_pass_group_share"] == 1 / 3
    assert metrics["reward/zero_advantage_group_share"] == 2 / 3
    assert metrics["rollout/incomplete_groups"] == 2
    assert metrics["rollout/failures_verifier"] == 3
    assert metrics["rollout/failures_sandbox"] == 0
    assert metrics["rollout/finish_timeout_share"] == 1 / 5
    assert metrics["rollout/finish_submitted_share"] == 4 / 5
    assert metrics["rollout/generated_tokens_mean"] == 20 / 5
    assert metrics["rollout/generated_tokens_max"] == 6
    assert metrics["rollout/rows"] == 5
    assert metrics["rollout/turns_mean"] == 1
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_rows_that_had_to_start_anew_are_counted_by_reason() -> None:
    """Such as a template that cannot extend its history."""
    turn = make_trajectory(1.0).turns[0]
    later = replace(turn, starts_row=False)
    broken = replace(
        make_trajectory(1.0),
        turns=(turn, later, turn, turn),
        harness=HarnessReport(row_reasons={"template": 2}),
    )
    metrics = rollout_metrics(make_iteration((broken, make_trajectory(0.0))))
    assert metrics["rollout/rows"] == 4
    assert metrics["rollout/row_break_template"] == 2


def test_G02_undefined_metrics_are_left_out() -> None:
    metrics = rollout_metrics(make_iteration((LOST, LOST)))
    assert metrics["rollout/failures_verifier"] == 2.0
    assert not any(name.startswith("reward/") for name in metrics)
    assert not any("share" in name or "mean" in name for name in metrics)
    empty = rollout_metrics(Iteration(index=0))
    assert empty["rollout/incomplete_groups"] == 0.0


def test_G02_survivors_that_got_no_credit_are_left_out_too() -> None:
    iteration = make_iteration((make_trajectory(1.0),))
    iteration.shaped_rewards, iteration.advantages = [[None]], [[None]]
    metrics = rollout_metrics(iteration)
    assert metrics["reward/pass_rate"] == 1.0
    assert "reward/shaped_mean" not in metrics
    assert "reward/zero_advantage_group_share" not in metrics


def test_the_progress_line_says_where_the_run_is() -> None:
    iteration = make_iteration((make_trajectory(1.0), LOST))
    iteration.metrics = {
        "reward/pass_rate": 0.5,
        "rubric/mean_reward": 0.25,
        "reward/all_fail_group_share": 0.125,
        "pool/size": 12.0,
        "pool/active_skills": 3.0,
    }
    iteration.durations_s["iteration"] = 2.34
    assert progress_line(iteration, 7, 150, 3725.9) == (
        "step   7/150  pass 50.0%  rubric 25.0%  all-fail 12.5%  pool 12 (3 on)  lost 1  "
        "2.3 s  left 1:02:05"
    )


def test_the_progress_line_leaves_out_what_is_undefined() -> None:
    assert progress_line(Iteration(index=0), 1, 9, 65.0) == "step 1/9  0.0 s  left 1:05"


def write_events(path: Path, *steps: int, text: str = "x") -> list[str]:
    lines = [json.dumps({"step": s, "text": text}, ensure_ascii=False) for s in steps]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return lines


def kept_steps(path: Path) -> list[int]:
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return [json.loads(line)["step"] for line in lines]


def test_events_after_the_checkpoint_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    write_events(path, 5, 10, 10, 15)
    truncate_events(path, 10)
    assert kept_steps(path) == [5, 10, 10]
    assert [file.name for file in tmp_path.iterdir()] == ["pool.jsonl"]
    truncate_events(path, 0)
    assert path.read_text() == ""


def test_a_log_that_is_absent_stays_absent(tmp_path: Path) -> None:
    truncate_events(tmp_path / "pool.jsonl", 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_last_line_that_was_cut_off_is_removed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "pool.jsonl"
    write_events(path, 5, 6, text="☕☕☕")
    data = path.read_bytes()
    path.write_bytes(data[: -1 - cut])
    truncate_events(path, 10)
    assert kept_steps(path) == [5]


def test_texts_with_other_line_ends_are_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    lines = write_events(path, 5, 6, text="a\u2028b\x85c\u2029")
    truncate_events(path, 10)
    assert path.read_text(encoding="utf-8") == "".join(line + "\n" for line in lines)
