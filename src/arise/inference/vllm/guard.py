"""Runs a server and ends it, with everything it started, as soon as the trainer is gone.

`python -m arise.inference.vllm.guard PARENT FOLDER COMMAND...` watches the process PARENT, whose
child it is: however that dies, by `kill -9` too, this process is handed to another parent and
notices. It collects the server's orphans itself, so that none can outlive it. FOLDER, which holds
weights on their way, is removed in the end.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

import psutil

_SET_CHILD_SUBREAPER = 36
_SET_PARENT_DEATH_SIGNAL = 1
_POLL_S = 0.2
_PATIENCE_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Run the command until it ends, the parent dies, or a signal asks for the end."""
    parent, folder, command = int(arguments[0]), arguments[1], list(arguments[2:])
    asked_to_end: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        asked_to_end.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    server = subprocess.Popen(
        command,
        start_new_session=True,
        # Should this process be killed itself, the server at least goes with it.
        preexec_fn=lambda: _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL),
    )
    try:
        while server.poll() is None and os.getppid() == parent and not asked_to_end:
            time.sleep(_POLL_S)
    finally:
        end_all()
        shutil.rmtree(folder, ignore_errors=True)
    return server.wait()


def end_all(patience_s: float = _PATIENCE_S) -> None:
    """Ask every descendant to end, then make it."""
    asked = psutil.Process().children(recursive=True)
    for process in asked:
        _send(process, signal.SIGTERM)
    psutil.wait_procs(asked, timeout=patience_s)
    while left := _living_descendants():
        for process in left:
            _send(process, signal.SIGKILL)
        psutil.wait_procs(left, timeout=1.0)


def _living_descendants() -> list[psutil.Process]:
    living = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
        except psutil.NoSuchProcess:
            continue
    return living


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
