"""The torchrun line of `docs/scaling.md`, started twice: two nodes of one process each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from arise.runs.folder import complete_checkpoints
from arise.runs.manifest import read_manifest
from documented_blocks import commands
from runs import LAUNCH_VARIABLES, ROOT, TASKS, only_run, trajectories

pytestmark = pytest.mark.slow


def test_two_nodes_are_one_run(tmp_path: Path) -> None:
    (command,) = (c for c in commands(ROOT / "docs" / "scaling.md") if c.words[0] == "torchrun")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.replace(":29500", f":{port}") for word in command.words[1:]]
    small = (
        "debug=tiny",
        "trainer.max_steps=1",
        "datamodule=folder",
        f"datamodule.corpus={TASKS}",
        f"paths.output_dir={tmp_path}",
    )
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words, *small],
            cwd=ROOT,
            env={**inherited, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        outputs = [node.communicate(timeout=240)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], outputs
    run = only_run(tmp_path, "arise")
    (checkpoint,) = complete_checkpoints(run)
    assert read_manifest(checkpoint)["num_processes"] == 2
    # Rank 0 alone played and wrote.
    (slots,) = trajectories(run).values()
    assert len(slots) == 4
    assert sum("1 iterations" in output for output in outputs) == 1
