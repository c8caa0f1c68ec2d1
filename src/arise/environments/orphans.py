"""What is left of sandboxes whose trainer was killed in the moment they began.

bubblewrap ends with its parent, except for one moment: its second process waits for the first to
map the users, and while it waits it does not hear of that one's death. It runs nothing and holds
nothing of a task, but it would stay for ever.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

_PROGRAM = "bwrap"


def remove_orphans(host_name: str) -> int:
    """End the first processes of sandboxes whose bubblewrap is gone.

    Those of sandboxes that run, of whatever trainer, have a bubblewrap as their parent.

    Args:
        host_name: Of the sandboxes, by which ours are known.

    Returns:
        How many there were.
    """
    count = 0
    for process in psutil.process_iter(["name"]):
        if process.info["name"] != _PROGRAM:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if _is_orphan(process, host_name):
                process.kill()
                count += 1
    return count


def _is_orphan(process: psutil.Process, host_name: str) -> bool:
    words = process.cmdline()
    if "--hostname" not in words or words[words.index("--hostname") + 1] != host_name:
        return False
    status = Path("/proc", str(process.pid), "status").read_text(encoding="utf-8")
    # Its numbers in our namespace and in those below; the last one is 1 for a first process.
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    if len(numbers) < 2 or numbers[-1] != "1":
        return False
    parent = process.parent()
    return parent is None or parent.name() != _PROGRAM
