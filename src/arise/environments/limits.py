"""Processes of a sandbox as the host sees them: finding, killing, and the memory watchdog.

Without a writable cgroup no kernel limit covers a whole process tree, so `MemoryWatchdog` sums
the resident memory of each sandbox and kills its largest process when the sum is over the limit.
It does not see memory that no process maps (files in memory, detached shared memory).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One line of the process table.

    Attributes:
        pid: Process id on the host.
        parent: The parent's id.
        started_ticks: Start time since boot, in clock ticks.
        memory_bytes: Resident memory.
        is_dead: Whether it is a zombie.
    """

    pid: int
    parent: int
    started_ticks: int
    memory_bytes: int
    is_dead: bool


def now_ticks() -> int:
    """The clock of `ProcessInfo.started_ticks`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S)


def process_info(pid: int) -> ProcessInfo | None:
    """What is known of process `pid`; `None` if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, so fields are counted from its end.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessInfo(
        pid=pid,
        parent=int(fields[1]),
        started_ticks=int(fields[19]),
        memory_bytes=int(fields[21]) * _PAGE_BYTES,
        is_dead=fields[0] in (b"Z", b"X"),
    )


def process_table() -> dict[int, list[ProcessInfo]]:
    """All processes of the machine by their parent."""
    table: dict[int, list[ProcessInfo]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (info := process_info(int(name))) is not None:
            table.setdefault(info.parent, []).append(info)
    return table


def descendants(pid: int, table: dict[int, list[ProcessInfo]] | None = None) -> list[ProcessInfo]:
    """Living processes below `pid`, parents first."""
    table = process_table() if table is None else table
    found = list(table.get(pid, ()))
    for info in found:
        found += table.get(info.pid, ())
    return [info for info in found if not info.is_dead]


def children(pid: int) -> list[int]:
    """Ids of the children of `pid`, without a walk over all processes where the kernel can."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except ProcessLookupError:
        return []
    except FileNotFoundError:
        return [info.pid for info in process_table().get(pid, ())]


def kill(pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


async def kill_started_since(root: int, ticks: int, *, patience_s: float) -> bool:
    """Kill every descendant of `root` that started at `ticks` or later.

    Processes are stopped before they are killed, because a stopped process cannot fork and thus
    outrun this loop.

    Returns:
        Whether none is left after at most `patience_s` seconds.
    """
    deadline = time.monotonic() + patience_s
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        targets = {info.pid for info in descendants(root) if info.started_ticks >= ticks}
        if not targets:
            return True
        fresh = targets - stopped
        for pid in fresh or targets:
            kill(pid, signal.SIGSTOP if fresh else signal.SIGKILL)
        stopped |= fresh
        await asyncio.sleep(0 if fresh else 0.005)
    return False


class Watched(Protocol):
    """What the watchdog needs to know of a sandbox."""

    memory_bytes: int

    def session_pid(self) -> int | None:
        """Host pid of the first process of the session; it is never killed itself."""

    def on_memory_kill(self) -> None:
        """Called after a process was killed for memory."""


class MemoryWatchdog:
    """Checks all sandboxes of a factory several times a second."""

    def __init__(self, *, interval_s: float, watched: Callable[[], Iterable[Watched]]) -> None:
        self._interval_s = interval_s
        self._watched = watched
        self._task: asyncio.Task[None] | None = None

    def ensure_running(self) -> None:
        """Start the check in the running loop; it ends by itself with the last sandbox."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._run(), name="arise-memory-watchdog")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            watched = list(self._watched())
            if not watched:
                return
            table = process_table()
            for sandbox in watched:
                _enforce(sandbox, table)


def _enforce(sandbox: Watched, table: dict[int, list[ProcessInfo]]) -> None:
    pid = sandbox.session_pid()
    if pid is None:
        return
    processes = descendants(pid, table)
    if sum(info.memory_bytes for info in processes) > sandbox.memory_bytes:
        kill(max(processes, key=lambda info: info.memory_bytes).pid)
        sandbox.on_memory_kill()
