"""Runs `train.py` for every run that is not finished, so many at a time."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arise.study.progress import Progress
from arise.study.settings import RunSpec
from arise.study.state import RunState

_STEP = re.compile(r"^step +(\d+)/")
_POLL_S = 0.2
_GRACE_S = 300.0
_PARENT_DEATH_SIGNAL = 1
# What a training run puts there for its own children; another run must not take it for its own.
_LAUNCH = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "ARISE_RUN_FOLDER",
)


@dataclass(slots=True, kw_only=True)
class RunningTraining:
    """A `train.py` at work.

    Attributes:
        spec: Its run.
        process: It leads a process group of its own.
        log: Where its output goes.
        reader: Copies the output and tells the progress.
    """

    spec: RunSpec
    process: subprocess.Popen[str]
    log: Path
    reader: threading.Thread = field(init=False)

    def follow(self, progress: Progress) -> None:
        """Copy output lines into the log as they come, and report steps."""
        assert self.process.stdout is not None
        with self.log.open("a", encoding="utf-8") as log:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                match = _STEP.match(line)
                if match:
                    progress.step(self.spec.name, int(match[1]))


def run_all(
    states: Sequence[RunState], *, root: Path, logs: Path, processes: int
) -> list[tuple[RunSpec, Path]]:
    """Train what is not finished.

    A run with a checkpoint goes on from it. One that fails is left as it is, the others go on.

    Args:
        states: How the runs stand, in the order in which they are to be done.
        root: Folder with `train.py`.
        logs: Folder for the output of each run.
        processes: Runs at once.

    Returns:
        The runs that failed, with their logs.

    Raises:
        KeyboardInterrupt: Interrupted; the runs at work have saved a checkpoint.
    """
    waiting = [state for state in states if not state.is_finished]
    progress = Progress(states)
    logs.mkdir(parents=True, exist_ok=True)
    running: list[RunningTraining] = []
    failed: list[tuple[RunSpec, Path]] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                running.append(_start(waiting.pop(0), root, logs, progress))
            time.sleep(_POLL_S)
            for task in [task for task in running if task.process.poll() is not None]:
                running.remove(task)
                task.reader.join()
                code = task.process.returncode
                progress.ended(task.spec.name, code)
                if code == -signal.SIGINT or code == 128 + signal.SIGINT:
                    raise KeyboardInterrupt
                if code != 0:
                    failed.append((task.spec, task.log))
    finally:
        _end(running)
    return failed


def _start(state: RunState, root: Path, logs: Path, progress: Progress) -> RunningTraining:
    spec = state.spec
    overrides = [*spec.overrides]
    if state.folder is not None:
        overrides.append("ckpt_path=last")
    process = subprocess.Popen(
        [sys.executable, str(root / "train.py"), *overrides],
        cwd=Path.cwd(),
        env={key: value for key, value in os.environ.items() if key not in _LAUNCH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    log = logs / f"{spec.parent.parent.name}-{spec.parent.name}.log"
    task = RunningTraining(spec=spec, process=process, log=log)
    progress.started(spec.name, state.steps, log)
    task.reader = threading.Thread(target=task.follow, args=(progress,), daemon=True)
    task.reader.start()
    return task


def _end_with_parent() -> None:
    """If the study dies, its runs are interrupted, and save."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGINT, 0, 0, 0)


def _end(running: Sequence[RunningTraining]) -> None:
    """Interrupt the runs at work and wait until they have saved."""
    for task in running:
        if task.process.poll() is None:
            os.killpg(task.process.pid, signal.SIGINT)
    deadline = time.monotonic() + _GRACE_S
    for task in running:
        try:
            task.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(task.process.pid, signal.SIGKILL)
            task.process.wait()
        task.reader.join()
