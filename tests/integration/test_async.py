"""Asynchronous rollouts in whole runs: exactness at η = 0, repetition, going on, staleness."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from arise import app
from arise.assembly_rollouts import asynchronous_of
from arise.runs.folder import complete_checkpoints
from remains import WHOLE_METHOD, remains
from runs import (
    TINY,
    compose_config,
    only_run,
    start_training,
    stub_endpoints,
    trajectories,
    wait_for_line,
)
from stub_judge import StubJudge, varied_answer

pytestmark = pytest.mark.slow

SHORT = (
    *WHOLE_METHOD,
    "quiet=true",
    "rubrics.update_interval=1",
    "callbacks.checkpoint.every_steps=1",
    "callbacks.checkpoint.keep_last=0",
)
LOCKSTEP = (*SHORT, "rollout.max_staleness=1", "rollout.max_in_flight=3", "evaluation=none")


def train(folder: Path, *overrides: str) -> Path:
    with StubJudge(varied_answer) as stub:
        endpoints = stub_endpoints(stub.base_url)
        app.train(compose_config(*overrides, *endpoints, f"paths.output_dir={folder}"))
    return only_run(folder, "arise")


def test_eta_0_is_the_same_through_the_stream_and_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = "trainer.max_steps=4"
    expected = remains(train(tmp_path / "steps", *SHORT, steps), tmp_path)
    monkeypatch.setattr(app, "build_asynchronous", asynchronous_of)
    found = remains(train(tmp_path / "stream", *SHORT, steps), tmp_path)
    for name, part in found.items():
        if name.startswith("state of"):
            # It has the account besides.
            part["callbacks"].pop("RolloutCallback")
    points = found["points"]
    assert {tag: points.pop(tag) for tag in list(points) if tag.startswith("staleness/")}
    assert found.keys() == expected.keys()
    for part, content in expected.items():
        assert found[part] == content, part


def account(checkpoint: Path) -> dict[str, Any]:
    """What the checkpoint says of groups."""
    meta = torch.load(checkpoint / "meta.pt", weights_only=True)
    (state,) = (own for key, own in meta["callbacks"].items() if key.startswith("RolloutCallback"))
    return state


def require_exact(state: dict[str, Any], most: int) -> None:
    books = state["account"]
    open_groups = list(books["in_flight"])
    closed = books["num_trained"] + sum(books["dropped"].values()) + sum(books["failed"].values())
    assert books["num_started"] == closed + len(open_groups)
    assert [saved["serial"] for saved in state["in_flight"]] == open_groups
    assert len({saved["task_id"] for saved in state["in_flight"]}) == len(open_groups) <= most


def staleness(run: Path) -> dict[int, set[int]]:
    """Ages of the tokens that each step trained."""
    return {
        step: {
            record["iteration"] - version
            for record in records
            for turn in record.get("turns", ())
            for version in turn["policy_versions"]
        }
        for step, records in enumerate(trajectories(run).values(), start=1)
    }


@pytest.fixture(scope="module")
def lockstep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("lockstep"), *LOCKSTEP, "trainer.max_steps=5")


def test_lockstep_repeats_bit_for_bit_with_stale_tokens(lockstep: Path, tmp_path: Path) -> None:
    again = train(tmp_path, *LOCKSTEP, "trainer.max_steps=5")
    assert trajectories(again) == trajectories(lockstep)
    assert (again / "pool.jsonl").read_text() == (lockstep / "pool.jsonl").read_text()
    ages = staleness(lockstep)
    assert set().union(*ages.values()) == {0, 1}
    groups = {name: len({r["task_id"] for r in own}) for name, own in trajectories(again).items()}
    assert set(groups.values()) == {2}, "whole batches of distinct tasks"


def test_K03_the_account_and_the_bound_hold_across_a_resume(lockstep: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    first = train(output, *LOCKSTEP, "trainer.max_steps=3")
    state = account(complete_checkpoints(first)[-1])
    require_exact(state, most=2)
    assert len(state["in_flight"]) == 2, "B groups were under way"

    run = train(output, *LOCKSTEP, "trainer.max_steps=5", "ckpt_path=last")
    assert run == first
    before, after = trajectories(lockstep), trajectories(run)
    for step in ("step_000001.jsonl.gz", "step_000002.jsonl.gz", "step_000003.jsonl.gz"):
        assert after[step] == before[step]
    ages = staleness(run)
    assert ages[4] == {0}, "what was in flight is played again, under the restored policy"
    assert set().union(*ages.values()) == {0, 1}
    resubmitted = {saved["task_id"] for saved in state["in_flight"]}
    assert {record["task_id"] for record in after["step_000004.jsonl.gz"]} == resubmitted
    for checkpoint in complete_checkpoints(run):
        require_exact(account(checkpoint), most=2)
    final = account(complete_checkpoints(run)[-1])["account"]
    assert (final["num_trained"], final["num_started"]) == (10, 12)


def test_with_real_overlap_tokens_keep_their_version_and_the_bound_holds(tmp_path: Path) -> None:
    run = train(
        tmp_path, *SHORT, "evaluation=none", "rollout.max_staleness=2", "trainer.max_steps=6",
        "rollout.deterministic=false", "harness.max_turns=4",
    )  # fmt: skip
    ages = set().union(*staleness(run).values())
    assert ages <= {0, 1, 2}
    assert ages - {0}, "something was played beside the training"
    for checkpoint in complete_checkpoints(run):
        require_exact(account(checkpoint), most=4)
    for records in trajectories(run).values():
        for record in records:
            for turn in record["turns"]:
                assert turn["policy_versions"] == sorted(turn["policy_versions"])
                assert len(turn["log_ratios"]) == len(turn["token_ids"])


def test_an_interrupt_beside_running_episodes_saves_what_is_in_flight(tmp_path: Path) -> None:
    process = start_training(
        *TINY, "rollout.max_staleness=1", "rollout.deterministic=false", "trainer.max_steps=500",
        "callbacks.checkpoint.every_steps=999", f"paths.output_dir={tmp_path}",
    )  # fmt: skip
    wait_for_line(process, "step   3/500")
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    (checkpoint,) = complete_checkpoints(only_run(tmp_path))
    require_exact(account(checkpoint), most=4)
