"""Exact resume: a run that is killed and goes on equals one that was never interrupted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arise.runs.folder import complete_checkpoints
from runs import (
    TINY,
    checkpoint_tensors,
    kill_group,
    only_run,
    start_training,
    trajectories,
    wait_for_line,
)

pytestmark = pytest.mark.slow
SIX_STEPS = ("trainer.max_steps=6", "callbacks.checkpoint.every_steps=3")


def finish(process: object) -> str:
    output, _ = process.communicate(timeout=180)  # type: ignore[attr-defined]
    assert process.returncode == 0, output  # type: ignore[attr-defined]
    return output


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("straight")
    finish(start_training(*TINY, *SIX_STEPS, f"paths.output_dir={output_dir}"))
    return only_run(output_dir)


def points(run: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(tag)]


def test_K02_kill_and_resume_equals_an_unbroken_run(straight: Path, tmp_path: Path) -> None:
    arguments = (*TINY, *SIX_STEPS, f"paths.output_dir={tmp_path}")
    process = start_training(*arguments)
    # Step 4 is past the checkpoint: its trajectories and points must be forgotten and redone.
    wait_for_line(process, "step 4/6")
    kill_group(process)
    run = only_run(tmp_path)
    assert [path.name for path in complete_checkpoints(run)] == ["step_000003"]

    output = finish(start_training(*arguments, "ckpt_path=last"))
    assert str(run) in output
    assert "step 3/6" not in output
    assert only_run(tmp_path) == run
    assert trajectories(run) == trajectories(straight)
    for tag in ("loss/policy", "reward/pass_rate", "loss/lr"):
        assert points(run, tag) == points(straight, tag)
        assert [step for step, _ in points(run, tag)] == [1, 2, 3, 4, 5, 6]

    resumed = checkpoint_tensors(run / "checkpoints" / "step_000006", tmp_path)
    unbroken = checkpoint_tensors(straight / "checkpoints" / "step_000006", tmp_path)
    assert resumed.keys() == unbroken.keys()
    assert len(resumed) > 40  # weights and both moments
    for name, tensor in unbroken.items():
        assert torch.equal(resumed[name], tensor), name


def test_interrupt_leaves_a_checkpoint_and_nothing_else(straight: Path, tmp_path: Path) -> None:
    arguments = (*TINY, *SIX_STEPS, f"paths.output_dir={tmp_path}")
    process = start_training(*arguments)
    wait_for_line(process, "step 2/6")
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    time.sleep(0.5)
    assert not [child for child in children if child.is_running()]
    run = only_run(tmp_path)
    (checkpoint,) = complete_checkpoints(run)
    assert checkpoint.name in ("step_000002", "step_000003", "step_000004")

    finish(start_training(*arguments, "ckpt_path=last"))
    assert trajectories(run) == trajectories(straight)


def test_resume_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    process = start_training(*TINY, f"paths.output_dir={tmp_path}", "ckpt_path=last")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "ckpt_path=last" in output
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())
