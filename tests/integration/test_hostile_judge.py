"""Training with a judge that plays every fault: it ends, invents nothing, and the counts add up."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arise import app, cli
from arise.algorithms.advantages import task_advantages
from arise.rubrics.__main__ import main as rubrics
from hostile_judge import HostileJudge
from runs import compose_config, only_run, stub_endpoints, trajectories

POOL = """
pairs:
- title: Look first
  capability: understanding
  rubric: {applicability: Always., fail_condition: Acts blindly., pass_condition: Looks.}
  skill: {text: Look first.}
- title: Read back
  capability: verification
  rubric: {applicability: A file is written., fail_condition: Never read., pass_condition: Read.}
  skill: {text: Read it back.}
- title: Waste nothing
  capability: efficiency
  rubric: {applicability: Always., fail_condition: Repeats., pass_condition: Goes on.}
  skill: {text: Waste nothing.}
"""
NUM_STEPS = 10


@dataclass
class Finished:
    run: Path
    judge: HostileJudge
    slots: list[list[dict[str, Any]]]
    points: dict[str, list[float]]


def write_tasks(folder: Path) -> Path:
    """Two tasks whose reward is a coin's, so that task advantages are not all zero."""
    for name in ("coin", "toss"):
        task = folder / name
        for part in ("tests", "environment"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text("")
        (task / "instruction.md").write_text("Do as you like.")
        (task / "environment" / "Dockerfile").write_text("FROM ubuntu:24.04\nWORKDIR /app\n")
        (task / "tests" / "test.sh").write_text(
            "echo $(($(od -An -N1 -tu1 /dev/urandom) % 2)) > /logs/verifier/reward.txt\n"
        )
    return folder


def configure(folder: Path, base_url: str, *overrides: str) -> Any:
    pool = folder / "pool.jsonl"
    (folder / "pool.yaml").write_text(POOL)
    assert rubrics(["import", str(folder / "pool.yaml"), "--out", str(pool)]) == 0
    return compose_config(
        "experiment=arise",
        "debug=tiny",
        "datamodule=folder",
        f"datamodule.corpus={write_tasks(folder / 'tasks')}",
        f"paths.output_dir={folder / 'out'}",
        f"rubrics.pool_path={pool}",
        "rubrics.update_interval=4",
        f"trainer.max_steps={NUM_STEPS}",
        "quiet=true",
        *stub_endpoints(base_url),
        "judge.rubrics_per_request=2",
        "judge.cache=false",
        *(
            f"{group}.{setting}"
            for group in ("judge", "reflection")
            for setting in ("timeout_s=2.0", "max_tries=2", "backoff_s=0.01", "max_wait_s=0.05")
        ),
        *overrides,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("hostile")
    with HostileJudge(dies_after=70) as judge:
        app.train(configure(folder, judge.base_url, "judge.alarm_after=2"))
    run = only_run(folder / "out", "arise")
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    points = {
        tag: [point.value for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag.startswith(("judge/", "reflection/"))
    }
    return Finished(run=run, judge=judge, slots=list(trajectories(run).values()), points=points)


def test_J04_the_run_ends_and_every_fault_was_played(finished: Finished) -> None:
    assert len(finished.slots) == NUM_STEPS
    assert all("failure" not in slot for slots in finished.slots for slot in slots)
    assert (finished.run / "final_model" / "model.safetensors").is_file()
    faults = set(finished.judge.faults)
    assert faults >= {"429", "500", "503", "529", "drip", "cut", "html", "no choices", "dead"}
    assert faults >= {"null", "refusal", "contradiction", "half", "empty", "thinking", "cut text"}


def test_J04_J11_no_verdict_is_invented(finished: Finished) -> None:
    recorded = Counter(
        verdict["outcome"]
        for slots in finished.slots
        for slot in slots
        for verdict in slot["review"]["verdicts"]
    )
    assert recorded == finished.judge.said
    assert set(recorded) == {"pass", "fail", "not_applicable"}


def test_counts_add_up(finished: Finished) -> None:
    points = finished.points
    for step, slots in enumerate(finished.slots):
        reviews = [slot["review"] for slot in slots]
        asked = sum(len(review["judged_pair_ids"]) for review in reviews)
        valid = sum(len(review["verdicts"]) for review in reviews)
        assert points["judge/reviews"][step] == len(slots) == 4
        assert points["judge/verdicts"][step] == valid
        assert points["judge/invalid_verdicts"][step] == asked - valid
        assert points["judge/invalid_rate"][step] == pytest.approx(1 - valid / asked)
        # A verdict that is missing has its reason in the record.
        assert all(
            review["error"] for review in reviews
            if len(review["verdicts"]) < len(review["judged_pair_ids"])
        )  # fmt: skip
    assert sum(points["judge/calls"]) == finished.judge.calls["verdicts"]
    assert sum(points["judge/prompt_tokens"]) > 0
    assert min(points["judge/latency_p50_s"]) > 0


def test_J04_without_verdicts_the_advantage_is_the_tasks(finished: Finished) -> None:
    num_bare, num_told = 0, 0
    for slots in finished.slots:
        for task_id in {slot["task_id"] for slot in slots}:
            group = [slot for slot in slots if slot["task_id"] == task_id]
            rewards = [slot["task_reward"] for slot in group]
            expected = task_advantages(rewards, std="sample", eps=1e-9)
            for slot, advantage in zip(group, expected, strict=True):
                if not slot["review"]["verdicts"]:
                    assert slot["advantage"] == pytest.approx(advantage, abs=1e-12)
                    num_bare += 1
                    num_told += advantage != 0
    assert num_bare >= 12
    assert num_told > 0, "no group with both outcomes: the test says nothing"


def test_a_persistent_outage_is_an_alarm_and_the_pool_only_changes_by_what_was_said(
    finished: Finished,
) -> None:
    lost, alarm = finished.points["judge/lost_iterations"], finished.points["judge/alarm"]
    assert (lost[0], alarm[0]) == (0.0, 0.0)
    assert lost[-1] >= 2
    assert alarm[-1] == 1.0
    assert all(on == (count >= 2) for count, on in zip(lost, alarm, strict=True))
    assert finished.points["judge/invalid_rate"][-1] == 1.0
    events = [json.loads(line) for line in (finished.run / "pool.jsonl").read_text().splitlines()]
    applicable = sum(event.get("num_applicable", 0) for event in events)
    said = finished.judge.said
    assert applicable <= said["pass"] + said["fail"]
    assert {event["type"] for event in events} >= {"imported", "generation"}


def test_on_outage_stop_ends_the_run_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with HostileJudge(dies_after=0) as judge:
        cfg = configure(tmp_path, judge.base_url, "judge.alarm_after=2", "judge.on_outage=stop")
        with pytest.raises(SystemExit) as caught:
            cli.run(lambda: app.train(cfg))
    assert caught.value.code == cli.EXIT_FAILURE
    message = capsys.readouterr().err
    assert "2 iterations in a row without anything usable from the judge stub" in message
    assert "judge.on_outage=stop" in message
    assert len(trajectories(only_run(tmp_path / "out", "arise"))) == 1


def test_a_budget_of_calls_bounds_each_iteration(tmp_path: Path) -> None:
    with HostileJudge() as judge:
        app.train(
            configure(
                tmp_path,
                judge.base_url,
                "judge.max_calls_per_iteration=5",
                "trainer.max_steps=2",
                "logger=none",
            )
        )
    assert judge.calls["verdicts"] == 10
