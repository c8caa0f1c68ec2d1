"""A run in a real pseudo-terminal: the screen as a person has it, moment by moment."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

from runs import LAUNCH_VARIABLES, ROOT, TINY

COLUMNS, ROWS = 110, 40


def screens(tmp_path: Path, *overrides: str) -> tuple[int, str, list[list[str]]]:
    """Exit code, everything written, and every different screen of `python train.py`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    env = {**inherited, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "train.py", *TINY, f"paths.output_dir={tmp_path}", *overrides],
        cwd=ROOT,
        env={**env, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, decode = pyte.Stream(screen), codecs.getincrementaldecoder("utf-8")().decode
    seen: list[list[str]] = []
    written = ""
    deadline = time.monotonic() + 240
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed
                break
            text = decode(data)
            written += text
            stream.feed(text)
            shown = [line.rstrip() for line in screen.display]
            if not seen or shown != seen[-1]:
                seen.append(shown)
        return process.wait(timeout=30), written, seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_the_panel_follows_a_run_and_nothing_breaks_it(tmp_path: Path) -> None:
    code, written, seen = screens(tmp_path, "trainer.max_steps=3", "rollout.rollouts_per_task=4")
    assert code == 0, "\n".join(seen[-1])
    counts = {line.split()[1] for shown in seen for line in shown if line.startswith("iteration")}
    assert {"0/3", "3/3"} <= counts <= {"0/3", "1/3", "2/3", "3/3"}
    rollouts = [line.split()[1] for s in seen for line in s if line.startswith("rollouts")]
    whole = {count.partition("/")[2] for count in rollouts}
    assert len(whole) == 1
    assert f"{whole.copy().pop()}/{whole.copy().pop()}" in rollouts
    assert "starting the engine" in written
    assert any("now  the policy works on its tasks" in line for s in seen for line in s)

    last = seen[-1]
    (bottom,) = (i for i, line in enumerate(last) if line.startswith("now  finished"))
    labels = [line.split("  ")[0] for line in last[bottom - 3 : bottom]]
    assert labels == ["iteration", "rollouts", "pass rate"]
    assert sum(line.startswith("iteration") for line in last) == 1, "one panel, not a trail of them"
    above = "\n".join(last[: bottom - 4])
    assert "training tasks" in above
    assert "run folder" in above
    below = "\n".join(last[bottom + 1 :])
    assert "3 iterations" in below
    assert "trained policy" in below


def test_quiet_is_quiet(tmp_path: Path) -> None:
    code, written, _ = screens(tmp_path, "trainer.max_steps=1", "quiet=true")
    assert code == 0
    assert "iteration" not in written
    assert "step" not in written
