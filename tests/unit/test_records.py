import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arise.runs.records import read_records, slot_records, trajectory_file, write_records
from arise.types import (
    Capability,
    Diagnostic,
    FailureKind,
    FinishReason,
    InjectedSkill,
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


def make_iteration(observation: str = "ok", logprob: float = -0.5) -> Iteration:
    task = Task(id="a/b", instruction="go", path=Path("t"), tests=Path("t"), tags=("build", "net"))
    turn = Turn(
        prompt_token_ids=(1, 2),
        token_ids=(3, 4),
        logprobs=(-0.25, logprob),
        policy_versions=(6, 6),
        text="ls",
        action="ls",
        observation=observation,
        exit_code=0,
        starts_row=True,
    )
    trajectory = Trajectory(
        task_id="a/b",
        rollout=0,
        turns=(turn,),
        finish_reason=FinishReason.TURN_LIMIT,
        task_reward=1.0,
        skills=(InjectedSkill(pair_id=4, revision=2, text="Check."),),
        instruction="go",
        durations_s={"agent": 1.23456},
    )
    lost = RolloutFailure(task_id="a/b", rollout=1, kind=FailureKind.SANDBOX, message="died")
    review = Review(
        judged_pair_ids=(4, 5),
        verdicts=(Verdict(pair_id=4, outcome=Outcome.PASS, reason="seen"),),
        diagnostics=(Diagnostic(kind="gap", behaviour="b", signal="s", covered_by=4),),
        error="one missing",
    )
    return Iteration(
        index=6,
        samples=[
            SampledTask(
                task=task,
                reason="adaptive",
                tag="build",
                capability=Capability.DEBUGGING,
                numbers={"passes": 0.5},
            )
        ],
        groups=[TrajectoryGroup(task=task, slots=(trajectory, lost))],
        reviews=[[review, None]],
        shaped_rewards=[[1.5, None]],
        advantages=[[0.7, None]],
    )


def round_trip(iteration: Iteration, folder: Path) -> list[dict]:
    path = trajectory_file(folder / "trajectories", 7)
    write_records(path, slot_records(iteration))
    assert [file.name for file in path.parent.iterdir()] == ["step_000007.jsonl.gz"]
    return list(read_records(path))


def test_everything_is_read_back(tmp_path: Path) -> None:
    kept, lost = round_trip(make_iteration(), tmp_path)
    sampling = {
        "iteration": 6,
        "task_id": "a/b",
        "tags": ["build", "net"],
        "sampled_by": "adaptive",
        "sampled_tag": "build",
        "sampled_capability": "debugging",
        "sampled_numbers": {"passes": 0.5},
    }
    assert lost == {**sampling, "rollout": 1, "failure": "sandbox", "message": "died"}
    assert kept == {
        **sampling,
        "rollout": 0,
        "instruction": "go",
        "finish_reason": "turn_limit",
        "task_reward": 1.0,
        "num_generated_tokens": 2,
        "skills": [{"pair_id": 4, "revision": 2, "text": "Check."}],
        "turns": [
            {
                "prompt_token_ids": [1, 2],
                "token_ids": [3, 4],
                "logprobs": [-0.25, -0.5],
                "policy_versions": [6, 6],
                "text": "ls",
                "action": "ls",
                "observation": "ok",
                "exit_code": 0,
                "finish_reason": "stop",
                "starts_row": True,
            }
        ],
        "review": {
            "judged_pair_ids": [4, 5],
            "verdicts": [{"pair_id": 4, "outcome": "pass", "reason": "seen"}],
            "diagnostics": [{"kind": "gap", "behaviour": "b", "signal": "s", "covered_by": 4}],
            "error": "one missing",
            "prompt_hash": "",
            "model": "",
            "shortening": "",
        },
        "harness": {
            "num_tool_calls": 0,
            "num_tool_errors": 0,
            "row_reasons": {},
            "num_refused_calls": 0,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "exit_code": None,
            "log": "",
        },
        "durations_s": {"agent": 1.2346},
        "shaped_reward": 1.5,
        "advantage": 0.7,
    }


def test_log_ratios_follow_their_tokens_over_rows_turns_and_lost_rollouts(tmp_path: Path) -> None:
    """Rollout 0 is lost; 1 has two rows, the first of two turns; 2 has one row."""
    iteration = make_iteration()
    (group,) = iteration.groups
    trajectory, lost = group.slots
    assert isinstance(trajectory, Trajectory)
    (turn,) = trajectory.turns
    turns = (turn, replace(turn, starts_row=False), turn)
    slots = (lost, replace(trajectory, turns=turns), trajectory)
    iteration.groups = [replace(group, slots=slots)]
    iteration.reviews = []
    iteration.shaped_rewards = iteration.advantages = [[None, 1.0, -1.0]]
    iteration.log_ratios = {
        0: torch.tensor([0.1, -0.25, 1.5, -1e-7]),
        1: torch.tensor([math.inf, 0.5]),
        2: torch.tensor([0.0, math.nan]),
    }
    _, first, second = round_trip(iteration, tmp_path)
    assert [turn["log_ratios"] for turn in first["turns"]] == [
        [0.1, -0.25],
        [1.5, 0.0],
        [None, 0.5],
    ]
    assert [turn["log_ratios"] for turn in second["turns"]] == [[0.0, None]]
    assert str(first["turns"][1]["log_ratios"][1]) == "0.0"


def test_without_a_judge_there_is_no_review(tmp_path: Path) -> None:
    iteration = make_iteration()
    iteration.reviews = []
    assert "review" not in round_trip(iteration, tmp_path)[0]


def test_X07_lone_surrogates_leave_a_valid_file(tmp_path: Path) -> None:
    text = "a\udcffb\ud83d\u2028c\x85☕"
    kept, _ = round_trip(make_iteration(observation=text), tmp_path)
    assert kept["turns"][0]["observation"] == "a\ufffdb\ufffd\u2028c\x85☕"


def test_T15_log_probabilities_that_are_not_finite_stay_valid_json(tmp_path: Path) -> None:
    for value in (-math.inf, math.nan):
        kept, _ = round_trip(make_iteration(logprob=value), tmp_path)
        assert kept["turns"][0]["logprobs"] == [-0.25, None]


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "x.gz", tmp_path / "b" / "x.gz"]
    for path in paths:
        write_records(path, slot_records(make_iteration()))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    lines = gzip.decompress(paths[0].read_bytes()).decode("utf-8").splitlines()
    assert [json.loads(line)["rollout"] for line in lines] == [0, 1]


def test_a_write_that_fails_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    def records() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_records(tmp_path / "x.gz", records())
    assert not (tmp_path / "x.gz").exists()
