"""The lock of a run's folder, with real processes."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from arise.errors import ConfigError
from arise.runs.lock import RunLock, is_locked

# Takes the lock, starts a helper that outlives it, says so, and waits.
OWNER = """
    import subprocess, sys, time
    from pathlib import Path
    from arise.runs.lock import RunLock
    lock = RunLock(Path(sys.argv[1]))
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"])
    print("locked", flush=True)
    time.sleep(60)
"""


def start_owner(run: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(run)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_living_owner_is_named_and_a_killed_one_leaves_the_run_free(tmp_path: Path) -> None:
    owner = start_owner(tmp_path)
    assert is_locked(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"in use by process {owner.pid} on .* since 20"):
            RunLock(tmp_path)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert owner.stdout is not None
    owner.stdout.close()
    assert not is_locked(tmp_path), "a helper that still lives does not hold the lock"
    lock = RunLock(tmp_path)
    assert f"process {os.getpid()}" in (tmp_path / "lock").read_text()
    lock.release()
    lock.release()
    RunLock(tmp_path).release()


def test_asking_changes_nothing(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
