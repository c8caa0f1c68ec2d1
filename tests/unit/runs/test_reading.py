"""`python -m arise.runs`: reading a run's folder, for a person and for a program."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from arise.rubrics.pool import Refinement, RubricPool
from arise.rubrics.proposals import EvidenceRef, PairProposal
from arise.runs.__main__ import main
from arise.runs.lock import RunLock
from arise.runs.manifest import write_manifest
from arise.runs.pool_page import PoolOverview
from arise.runs.pool_story import pool_story
from arise.runs.records import trajectory_file, write_records
from arise.types import Outcome, Verdict

CONFIG = {
    "experiment_name": "arise",
    "seed": 3,
    "trainer": {"max_steps": 8},
    "rubrics": {"mode": "dynamic", "eta_low": 0.3, "eta_high": 0.9, "update_interval": 2},
    "rollout": {"tasks_per_step": 2, "rollouts_per_task": 2},
}
SAMPLED = {
    "a": {
        "sampled_by": "adaptive",
        "sampled_tag": "build",
        "sampled_capability": "debugging",
        "sampled_numbers": {"passes": 1.5, "failures": 6.25, "drawn_pass_rate": 0.125},
    },
    "b": {
        "sampled_by": "discovery",
        "sampled_tag": None,
        "sampled_capability": None,
        "sampled_numbers": {"discovery_probability": 0.44, "num_attempts": 4.0},
    },
}
# Steps 1 and 2: no pool. 3 and 4: 1 of 8 pass. 5 and 6: the skill is on, 2 of 8. 7 and 8: 8 of 8.
NUM_PASSES = {3: 1, 4: 0, 5: 1, 6: 1, 7: 4, 8: 4}


def slot(step: int, task: str, rollout: int) -> dict[str, Any]:
    index = 2 * "ab".index(task) + rollout
    verdicts = []
    if step in NUM_PASSES:
        outcome = "pass" if index < NUM_PASSES[step] else "fail"
        verdicts = [{"pair_id": 1, "outcome": outcome, "reason": f"{outcome} at {step}"}]
    skills = [{"pair_id": 1, "revision": 0, "text": "Look."}] if step in (5, 6) else []
    return {
        "iteration": step - 1,
        "task_id": task,
        "rollout": rollout,
        "tags": ["build"],
        **SAMPLED[task],
        "instruction": "Do it.",
        "finish_reason": "submitted",
        "task_reward": float(rollout),
        "num_generated_tokens": 7,
        "skills": skills,
        "turns": [
            {
                "token_ids": [1],
                "text": "ls [bold]x\x1b[2J",
                "action": "ls",
                "observation": "a\nb",
                "exit_code": 0,
            }
        ],
        "review": {
            "judged_pair_ids": [1] if step in NUM_PASSES else [],
            "verdicts": verdicts,
            "diagnostics": [
                {"kind": "gap", "behaviour": "does not look", "signal": "ls", "covered_by": None}
            ],
            "error": "",
        },
        "durations_s": {},
        "shaped_reward": float(rollout),
        "advantage": 0.7071 * (2 * rollout - 1),
    }


def pool_events() -> list[dict[str, Any]]:
    """A pair that is created, activated, refined and retired, from the same verdicts."""
    pool = RubricPool(max_pairs=4, max_new_pairs=2, max_text_chars=99)
    reference = EvidenceRef(task_id="a", iteration=1, rollout=0)
    proposal = PairProposal(
        title="Look first",
        capability="debugging",
        applicability="always",
        fail_condition="does not look",
        pass_condition="looks",
        skill="Look.",
        issues=(reference,),
        contrasts=(EvidenceRef(task_id="b", iteration=0, rollout=1),),
    )
    events = pool.update(2, {}, refinements={}, proposals=[proposal])
    for step in (4, 6, 8):
        num_passes = NUM_PASSES[step - 1] + NUM_PASSES[step]
        for index in range(8):
            outcome = Outcome.PASS if index < num_passes else Outcome.FAIL
            pool.observe("a", [Verdict(pair_id=1, outcome=outcome)])
        actions = pool.decide(eta_low=0.3, eta_high=0.9)
        texts = {1: Refinement(text="Look closely.", num_records=6)}
        events += pool.update(step, actions, refinements=texts, proposals=[])
    return events


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "arise" / "2025-01-01_10-00-00"
    (run / ".hydra").mkdir(parents=True)
    OmegaConf.save(CONFIG, run / ".hydra" / "config.yaml")
    for step in range(1, 9):
        slots = [slot(step, task, rollout) for task in "ab" for rollout in range(2)]
        write_records(trajectory_file(run / "trajectories", step), iter(slots))
    lines = "".join(json.dumps(event) + "\n" for event in pool_events())
    (run / "pool.jsonl").write_text(lines)
    results = [
        {"step": s, "percent": p, "runs_percent": [p], "num_tasks": 4, "num_errors": 0}
        for s, p in ((0, 10.0), (8, 45.6))
    ]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(r) + "\n" for r in results))
    checkpoint = run / "checkpoints" / "step_000006"
    checkpoint.mkdir(parents=True)
    write_manifest(checkpoint, step=6, num_processes=1)
    return run


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_list_tells_experiment_steps_held_out_rate_and_state(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = run.parent.parent
    (summary,) = parsed(capsys, "list", "--outputs", outputs)
    assert summary == {
        "path": str(run),
        "experiment": "arise",
        "state": "stopped",
        "steps": 8,
        "max_steps": 8,
        "checkpoint": 6,
        "held_out_percent": 45.6,
        "held_out_step": 8,
    }
    text = printed(capsys, "list", "--outputs", outputs)
    for word in ("arise", "8/8", "45.6 % at 8", "stopped"):
        assert word in text


def test_states(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> str:
        return parsed(capsys, "list", "--outputs", run.parent)[0]["state"]

    lock = RunLock(run)
    assert state() == "running"
    lock.release()
    checkpoint = (run / "checkpoints" / "step_000006").rename(run / "checkpoints" / "step_000008")
    write_manifest(checkpoint, step=8, num_processes=1)
    assert state() == "finished"
    checkpoint.rename(run / "checkpoints" / ".saving_step_000008")
    assert state() == "no checkpoint"


def test_show(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = parsed(capsys, "show", "last", "--outputs", run.parent.parent)
    assert page["run"]["path"] == str(run)
    assert page["settings"]["seed"] == 3
    assert page["settings"]["rollout.tasks_per_step"] == 2
    assert page["checkpoints"] == [{"step": 6, "num_processes": 1, "format": 1}]
    assert [result["percent"] for result in page["held_out"]] == [10.0, 45.6]
    counts = {"created": 1, "activated": 1, "refined": 1, "hidden": 0, "retired": 1}
    assert page["pool"] == counts
    assert page["pairs"] == [], "the only pair is retired"
    text = printed(capsys, "show", run)
    assert "1 created, 1 activated, 1 refined, 0 hidden, 1 retired" in text
    assert "10.0 % of 4" in text


def test_pool_tells_why_with_numbers_and_evidence(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pair,) = parsed(capsys, "pool", run)["pairs"]
    assert (pair["state"], pair["skill"]) == ("retired", "Look closely.")
    assert [(e["step"], e["type"]) for e in pair["events"]] == [
        (2, "created"),
        (4, "activated"),
        (6, "refined"),
        (8, "retired"),
    ]
    created, activated, refined, retired = pair["events"]
    (issue,) = created["evidence"]["issues"]
    assert (issue["step"], issue["task_id"], issue["rollout"]) == (2, "a", 0)
    assert issue["diagnostics"][0]["behaviour"] == "does not look"
    assert activated["why"] == (
        "p̂ = 12.5% (1 of 8) is at or below η_low = 0.3: the skill is switched on"
    )
    assert activated["evidence"]["tasks"] == {"a": {"pass": 1, "fail": 3}, "b": {"fail": 4}}
    assert activated["evidence"]["tags"] == {"build": {"pass": 1, "fail": 7}}
    assert activated["evidence"]["reasons"] == [
        {"step": 3, "task_id": "a", "rollout": 1, "reason": "fail at 3"},
        {"step": 3, "task_id": "b", "rollout": 0, "reason": "fail at 3"},
    ], "one a task"
    assert [reason["step"] for reason in refined["evidence"]["reasons"]] == [5, 5]
    assert "p̂ = 25.0% (2 of 8)" in refined["why"]
    assert "written anew from 6 failures" in refined["why"]
    assert "p̂ = 100.0% (8 of 8) is at or above η_high = 0.9" in retired["why"]
    assert retired["evidence"]["tasks"] == {"a": {"pass": 4}, "b": {"pass": 4}}
    for event in pair["events"][1:]:
        counts = event["evidence"]["tasks"].values()
        assert sum(c.get("pass", 0) for c in counts) == event["num_passes"]
        assert sum(sum(c.values()) for c in counts) == event["num_applicable"]


def test_pool_as_it_stood_after_a_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pair,) = parsed(capsys, "pool", run, "--step", 5)["pairs"]
    assert (pair["state"], pair["skill"], len(pair["events"])) == ("active", "Look.", 2)
    text = printed(capsys, "pool", run, "--step", 5, "--pair", 1)
    for words in (
        "R1 Look first  debugging, on",
        "fail     does not look",
        "step 4 activated: p̂ = 12.5% (1 of 8)",
        "by type  build 12% of 8",
        "by task  a 3 fail, 1 pass; b 4 fail",
        "fail     step 3 a/1: fail at 3",
        "fail     step 3 b/0: fail at 3",
        "issue     step 2 a/0: does not look",
    ):
        assert words in text


def test_pool_shows_what_changed_at_a_glance(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "pool", run)
    overview, _, rest = text.partition("p̂ in %")
    header, row = (line.split() for line in overview.splitlines())
    assert header == ["pair", "capability", "2", "4", "6", "8", "skill"]
    assert row == ["R1", "Look", "first", "debugging", "new", "12+", "25~", "100x", "retired"]
    assert re.search(r"old skill +Look\. *\n +new skill +Look closely\.", rest)
    assert "by task" not in rest
    assert rest.count("fail at ") == 2, "one quotation a decision"


def test_a_narrow_terminal_shows_the_newest_updates(run: Path) -> None:
    pairs = pool_story(run, until_step=None, pair_id=None)
    console = Console(width=56, file=io.StringIO())
    console.print(PoolOverview(pairs))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == ["pair", "capability", "6", "8", "skill"]
    assert "2 earlier updates are left out" in " ".join(lines)


def test_why_tasks_were_chosen(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = parsed(capsys, "pool", run, "--step", 3)
    assert [task["why"] for task in page["tasks"]] == [
        "adaptive: debugging on tasks of type build (passes S = 1.5, failures F = 6.25, "
        "drawn p̃ = 0.125)",
        "discovery (ρ = 0.44): some rubric has no verdict on it yet; tried 4 times before",
    ]
    assert page["tasks"][0]["rewards"] == [0.0, 1.0]


def test_trajectory_shows_verdicts_and_advantage_and_cannot_steer_the_terminal(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "trajectory", run, 5, "a", 1)
    for words in (
        "step 5, a/1",
        "skill R1, revision 0: Look.",
        "ls [bold]x␛[2J",
        "reward 1, shaped 1, advantage +0.7071",
        "R1 Look first",
        "fail at 5",
        "does not look",
        "adaptive: debugging on tasks of type build",
    ):
        assert words in text
    assert "\x1b" not in text
    record = parsed(capsys, "trajectory", run, 5, "a", 1)
    assert record["turns"][0]["token_ids"] == [1]
    assert record["why"].startswith("adaptive")


def test_a_lost_rollout_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {k: v for k, v in slot(9, "a", 0).items() if k in ("iteration", "task_id", "rollout")}
    lost = {**kept, "tags": [], **SAMPLED["a"], "failure": "sandbox", "message": "died"}
    write_records(trajectory_file(run / "trajectories", 9), iter([lost]))
    assert "lost (sandbox): died" in printed(capsys, "trajectory", run, 9, "a", 0)
    assert parsed(capsys, "pool", run)["tasks"][0]["rewards"] == [None]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "/no/run"], "'/no/run' is not a run's folder"),
        (["trajectory", "RUN", "99", "a", "0"], "step 99 of .* is not recorded"),
        (["trajectory", "RUN", "5", "z", "0"], "no rollout 0 of task 'z'; it has rollouts 0 to 1"),
        (["pool", "RUN", "--pair", "7"], "pair 7 is not among the 1 pairs"),
        (["show", "last", "--outputs", "/no/folder"], "no run below '/no/folder'"),
        (["list", "--outputs", "/no/folder"], "no run below '/no/folder'"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], words: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run) if argument == "RUN" else argument for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"error: .*{words}.*\n", captured.err)


def test_a_line_that_the_run_is_writing_is_left_out(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete = printed(capsys, "pool", run)
    with (run / "pool.jsonl").open("a") as log:
        log.write('{"type": "kept", "st')
    assert printed(capsys, "pool", run) == complete


def test_damaged_files_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory_file(run / "trajectories", 8).write_bytes(b"no gzip")
    assert main(["pool", str(run)]) == 2
    assert "step_000008.jsonl.gz is damaged" in capsys.readouterr().err
    (run / "pool.jsonl").write_text("{\n")
    assert main(["pool", str(run)]) == 2
    assert "pool.jsonl line 1 is not JSON" in capsys.readouterr().err
    (run / "pool.jsonl").unlink()
    assert main(["pool", str(run)]) == 2
    assert "has no pool" in capsys.readouterr().err


def test_as_a_user_calls_it_and_without_heavy_imports(run: Path) -> None:
    code = (
        "import sys; from arise.runs.__main__ import main; main(sys.argv[1:]);"
        "print(sorted({'torch', 'lightning', 'transformers', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "list", "--outputs", str(run.parent)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
