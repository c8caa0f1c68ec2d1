"""No server outlives the trainer: real processes, killed in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

SOURCE = Path(__file__).parents[3] / "src"

# A server with a worker that ignores SIGTERM and, orphaned by its own parent, belongs to nobody.
SERVER = """
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "worker").write_text(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
(folder / "server").write_text(str(os.getpid()))
time.sleep(float(sys.argv[2]))
"""

# A trainer: starts the guard as its child and goes on with its work.
TRAINER = """
import os, subprocess, sys, time
folder, seconds, server = sys.argv[1:4]
guard = subprocess.Popen(
    [sys.executable, "-m", "arise.inference.vllm.guard", str(os.getpid()), folder + "/weights",
     sys.executable, "-c", server, folder, seconds],
    start_new_session=True,
)
open(folder + "/guard", "w").write(str(guard.pid))
time.sleep(600)
"""


def pid_in(file: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if file.is_file() and file.read_text():
            return int(file.read_text())
        time.sleep(0.05)
    raise AssertionError(f"{file.name} did not start")


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"still there: {[pid for pid in pids if is_alive(pid)]}")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def trainer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "weights").mkdir()
    seconds = getattr(request, "param", "600")
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(tmp_path), seconds, SERVER],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    yield process
    process.kill()
    process.wait()


def started(folder: Path) -> list[int]:
    return [pid_in(folder / name) for name in ("guard", "server", "worker")]


def test_kill_9_of_the_trainer_ends_everything(
    trainer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    pids = started(tmp_path)
    trainer.kill()
    wait_until_gone(pids)
    assert not (tmp_path / "weights").exists()


def test_asking_the_guard_ends_everything(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    pids = started(tmp_path)
    os.kill(pids[0], signal.SIGTERM)
    wait_until_gone(pids)
    assert trainer.poll() is None


@pytest.mark.parametrize("trainer", ["0.5"], indirect=True)
def test_a_server_that_ends_takes_its_orphans_along(
    trainer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    wait_until_gone(started(tmp_path))
    assert trainer.poll() is None
