"""Folders for temporary files that do not outlive a killed process for long."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from arise.environments import limits


def temporary_folder(kind: str) -> Path:
    """A new folder of this process; those of its kind whose process is dead are removed.

    Its name says whose it is: process namespace, process id, and the process's start, because ids
    are used again. Processes in other namespaces cannot be seen, so their folders are left alone.

    Args:
        kind: Part of the name, without a hyphen.
    """
    prefix = f"arise-{kind}-{_namespace()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid, _, rest = folder.name.removeprefix(prefix).partition("-")
        started, _, _ = rest.partition("-")
        if pid.isdecimal() and started.isdecimal() and not _lives(int(pid), int(started)):
            shutil.rmtree(folder, ignore_errors=True)
    info = limits.process_info(os.getpid())
    assert info is not None
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{info.pid}-{info.started_ticks}-"))


def _lives(pid: int, started_ticks: int) -> bool:
    info = limits.process_info(pid)
    return info is not None and not info.is_dead and info.started_ticks == started_ticks


def _namespace() -> str:
    """Number of the process namespace."""
    return "".join(filter(str.isdecimal, os.readlink("/proc/self/ns/pid")))
