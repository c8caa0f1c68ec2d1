"""`python train.py` on two processes, one of which is lost: the run ends and says why."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from arise.runs.folder import checkpoint_step, complete_checkpoints
from integration.test_two_processes import rendezvous_port
from runs import TINY, kill_group, only_run, start_training

pytestmark = pytest.mark.slow

_TIMEOUT_S = 180


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start_training(
        *TINY,
        "trainer.devices=2",
        "trainer.max_steps=500",
        "callbacks.checkpoint.every_steps=1",
        "callbacks.watch.interval_s=0.5",
        "quiet=true",
        f"paths.output_dir={tmp_path}",
        env={"STANDALONE_PORT": str(rendezvous_port())},
    )
    deadline = time.monotonic() + _TIMEOUT_S
    while not list(tmp_path.glob("*/*/checkpoints/step_*")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield process
    if process.poll() is None:
        kill_group(process)


def second_rank(process: subprocess.Popen[str]) -> psutil.Process:
    children = psutil.Process(process.pid).children()
    (rank,) = (child for child in children if child.environ().get("LOCAL_RANK") == "1")
    return rank


def test_a_killed_rank_ends_the_run_with_one_sentence_and_a_checkpoint(
    run: subprocess.Popen[str], tmp_path: Path
) -> None:
    rank = second_rank(run)
    everything = psutil.Process(run.pid).children(recursive=True)
    rank.kill()
    killed = time.monotonic()
    said, _ = run.communicate(timeout=_TIMEOUT_S)
    assert run.returncode == 1
    assert time.monotonic() - killed < 30
    (sentence,) = (line for line in said.splitlines() if line.startswith("error:"))
    assert f"rank 1 (process {rank.pid} on " in sentence
    assert "was killed by signal 9; it was in the " in sentence
    assert " of iteration " in sentence
    newest = complete_checkpoints(only_run(tmp_path))[-1]
    assert f"The newest checkpoint is {newest}; go on with ckpt_path=last" in sentence
    _, alive = psutil.wait_procs(everything, timeout=30)
    assert not alive


def test_an_interrupt_that_only_rank_0_gets_ends_both_with_a_checkpoint(
    run: subprocess.Popen[str], tmp_path: Path
) -> None:
    rank = second_rank(run)
    os.kill(run.pid, signal.SIGINT)
    said, _ = run.communicate(timeout=_TIMEOUT_S)
    assert run.returncode == 130, said
    assert "Traceback" not in said
    rank.wait(30)
    assert checkpoint_step(complete_checkpoints(only_run(tmp_path))[-1]) >= 1
