"""`engine=vllm` as a user starts it: train, die, go on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from arise.runs.folder import checkpoint_step, complete_checkpoints
from runs import only_run, scalars, start_training, trajectories, wait_for_line

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

METHOD = (
    "experiment=arise",
    "engine=vllm",
    "engine.kv_cache_gib=0.25",
    "evaluation=none",
    "rollout.tasks_per_step=2",
    "rollout.rollouts_per_task=2",
    "rubrics.update_interval=1",
    "callbacks.checkpoint.every_steps=1",
    "trainer.max_steps=2",
)


def versions(run: Path) -> dict[str, set[int]]:
    """Policy versions of all tokens, by file of the iteration."""
    return {
        name: {
            version
            for record in records
            for turn in record["turns"]
            for version in turn["policy_versions"]
        }
        for name, records in trajectories(run).items()
    }


def test_W05_a_run_that_was_killed_takes_its_server_along_and_goes_on_with_another(
    vllm_url: str, tmp_path: Path
) -> None:
    """Step 1 on a server of its own, kill -9, step 2 on one that is running."""
    output = f"paths.output_dir={tmp_path}"
    process = start_training(*METHOD, output)
    wait_for_line(process, "step 1", timeout_s=1500.0)
    run = only_run(tmp_path, "arise")
    deadline = time.monotonic() + 300
    while not complete_checkpoints(run):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("api_server" in " ".join(child.cmdline()) for child in children)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert "Application startup complete" in (run / "vllm.log").read_text(errors="replace")

    resumed = start_training(*METHOD, output, f"engine.urls=[{vllm_url}]", "ckpt_path=last")
    said, _ = resumed.communicate(timeout=1500)
    assert resumed.returncode == 0, said
    assert max(map(checkpoint_step, complete_checkpoints(run))) == 2
    found = versions(run)
    assert sorted(found.values(), key=min) == [{0}, {1}]
    logged = scalars(run)
    for name in ("mean", "max"):
        gaps = [value for _, value in logged[f"engine/probe_{name}_logprob_gap"]]
        assert len(gaps) == 2
        assert max(gaps) < 1e-4
    assert max(value for _, value in logged["ratio/max"]) < 1.001
