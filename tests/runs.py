"""Helpers for tests that run training: compose in process, start as a user would."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from arise.config import register_schemas
from arise.runs.records import read_records

ROOT = Path(__file__).parents[1]
TASKS = ROOT / "tests" / "data" / "tasks"

# What a training run in this process leaves behind; a child must not take it for its own.
LAUNCH_VARIABLES = {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"}

JUDGE_COST = {
    f"judge/{name}"
    for name in ("calls", "requests", "cached_verdicts", "prompt_tokens", "completion_tokens")
}

# The smallest real run on the five hand-written tasks.
TINY = (
    "experiment=ablation/outcome_only",
    "debug=tiny",
    "datamodule=folder",
    f"datamodule.corpus={TASKS}",
)


def stub_endpoints(base_url: str) -> tuple[str, ...]:
    """Judge and reflection behind a server that asks for no key."""
    return tuple(
        override
        for group in ("judge", "reflection")
        for override in (
            f"{group}=openai",
            f"{group}.model=stub",
            f"{group}.base_url={base_url}",
            f"{group}.api_key_env=null",
        )
    )


def compose_config(*overrides: str) -> DictConfig:
    register_schemas()
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
        return compose(config_name="train", overrides=list(overrides))


def rendezvous_port() -> int:
    """A free port below those that the kernel gives to outgoing connections.

    Lightning picks one of the latter and binds it seconds later; on a busy machine another process
    may have it by then.
    """
    for port in random.SystemRandom().sample(range(15_000, 30_000), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no free port between 15,000 and 30,000")


def start_training(*overrides: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`python train.py ...` in a process group of its own."""
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    return subprocess.Popen(
        [sys.executable, "train.py", *overrides],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_line(process: subprocess.Popen[str], text: str, timeout_s: float = 120.0) -> str:
    """Read output until a line holds `text`; everything read so far is returned."""
    assert process.stdout is not None
    seen, deadline = "", time.monotonic() + timeout_s
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
        assert time.monotonic() < deadline, seen
    raise AssertionError(f"the run ended without {text!r}:\n{seen}")


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def only_run(output_dir: Path, experiment: str = "outcome_only") -> Path:
    (run,) = (output_dir / experiment).iterdir()
    return run


def trajectories(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Records by file name, without durations."""
    return {
        path.name: [
            {key: value for key, value in record.items() if key != "durations_s"}
            for record in read_records(path)
        ]
        for path in sorted((run / "trajectories").glob("*.jsonl.gz"))
    }


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Points of TensorBoard by tag, but for durations (`*_s`), memory and what the judge cost.

    A judge is not asked again for what it said before a run died.
    """
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if not tag.endswith("_s") and not tag.startswith("system/") and tag not in JUDGE_COST
    }


def freeze_when(
    process: subprocess.Popen[str], condition: Callable[[], object], timeout_s: float = 600.0
) -> None:
    """Stop a process group at a moment when `condition` holds, so that it still holds after."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended before the moment came"
        if condition():
            os.killpg(process.pid, signal.SIGSTOP)
            if condition():
                return
            os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.0005)
    raise AssertionError("the moment never came")


def checkpoint_tensors(checkpoint: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """Weights and optimizer moments of a sharded checkpoint, by flat name."""
    file = scratch / f"{checkpoint.parent.parent.name}_{checkpoint.name}.pt"
    dcp_to_torch_save(checkpoint, file)
    flat: dict[str, torch.Tensor] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(f"{prefix}/{key}", value)
        elif isinstance(node, torch.Tensor):
            flat[prefix] = node

    walk("", torch.load(file, weights_only=False))
    return flat
