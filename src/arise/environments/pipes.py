"""File descriptors between the host and a machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

_MAX_LINE_BYTES = 4096
_FIRST_REMOTE_FD = 20


class Pipes:
    """Makes pipes; what is `opened` is closed on failure, the sandbox's ends always."""

    def __init__(self, opened: contextlib.ExitStack, remote: contextlib.ExitStack) -> None:
        self._opened = opened
        self._remote = remote
        self._peers: dict[int, int] = {}

    def inbound(self) -> int:
        """A pipe that the sandbox writes; returns our end."""
        reader, writer = os.pipe()
        return self._keep(reader, writer)

    def outbound(self) -> int:
        """A pipe that the sandbox reads; returns our end."""
        reader, writer = os.pipe()
        return self._keep(writer, reader)

    def channel(self) -> tuple[int, int]:
        """A file in memory: (our writing end, the reading end that is shared).

        Seeking the reading end here moves it in the sandbox too, and nobody there can write it.
        """
        writer = os.memfd_create("channel", os.MFD_CLOEXEC)
        self._opened.callback(os.close, writer)
        reader = _renumbered(os.open(f"/proc/self/fd/{writer}", os.O_RDONLY | os.O_CLOEXEC))
        self._opened.callback(os.close, reader)
        self._peers[reader] = reader
        return writer, reader

    def remote_of(self, fd: int) -> int:
        """The sandbox's end of the pipe whose other end is `fd`."""
        return self._peers[fd]

    def inherited(self) -> list[int]:
        """Everything the sandbox needs."""
        return list(self._peers.values())

    def _keep(self, ours: int, theirs: int) -> int:
        self._opened.callback(os.close, ours)
        self._peers[ours] = _renumbered(theirs)
        self._remote.callback(os.close, self._peers[ours])
        os.set_blocking(ours, False)
        return ours


def _renumbered(fd: int) -> int:
    """Move `fd` above the numbers to which the supervisor moves the files of a session."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_REMOTE_FD)
    os.close(fd)
    return high


class LineReader:
    """Calls `on_line` for each line of a pipe, and with `None` at its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        on_line: Callable[[str | None], None],
        closers: list[Callable[[], None]],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._on_line = on_line
        self._buffer = b""
        loop.add_reader(fd, self._on_readable)
        closers.append(self._close)

    def _on_readable(self) -> None:
        data = os.read(self._fd, _MAX_LINE_BYTES)
        if not data:
            self._loop.remove_reader(self._fd)
            self._on_line(None)
            return
        *lines, rest = (self._buffer + data).split(b"\n")
        # An agent that gets hold of the pipe must not fill the host's memory.
        self._buffer = rest[-_MAX_LINE_BYTES:]
        for line in lines:
            self._on_line(line.decode("ascii", errors="replace"))

    def _close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
