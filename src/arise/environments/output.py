"""Bounded capture of what a sandbox prints."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import struct
import termios

_CHUNK_BYTES = 65_536
_IDLE_PAUSE_S = 0.01


class CappedOutput:
    """Keeps the first and the last half of `max_bytes`; what lies between is counted only.

    Example:
        >>> output = CappedOutput(4)
        >>> output.write(b"abcdef")
        >>> output.text()
        ('ab\\n[... 2 bytes dropped ...]\\nef', 2)
    """

    def __init__(self, max_bytes: int) -> None:
        self._num_head = max_bytes - max_bytes // 2
        self._num_tail = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Append `data`."""
        room = self._num_head - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room else data
        excess = len(self._tail) - self._num_tail
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def raw(self) -> bytes:
        """What is kept, without a marker."""
        return bytes(self._head + self._tail)

    def text(self) -> tuple[str, int]:
        """The kept output as valid text, and the number of bytes left out.

        Invalid bytes and NUL become U+FFFD; a character is never cut in two by the cap.
        """
        if not self._dropped:
            return _decode(self.raw()), 0
        head, tail = bytes(self._head), bytes(self._tail)
        head = head[: len(head) - _num_incomplete(head)]
        start = 0
        while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
            start += 1
        dropped = self._dropped + len(self._head) - len(head) + start
        marker = f"\n[... {dropped} bytes dropped ...]\n"
        return _decode(head) + marker + _decode(tail[start:]), dropped


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def _num_incomplete(data: bytes) -> int:
    """Bytes at the end of `data` that begin a character without finishing it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data[-4:])
    return len(decoder.getstate()[0])


class OutputReader:
    """Reads a pipe all the time, so that no process in the sandbox blocks or gets SIGPIPE.

    What a background process prints between two commands is delivered with the next one, as a
    terminal would. Then the reader is in no hurry: a process that floods its output waits.
    """

    def __init__(self, fd: int, max_bytes: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._max_bytes = max_bytes
        self._captured = CappedOutput(max_bytes)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._on_readable)
        self._resume: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.is_idle = True

    def hurry(self) -> None:
        """A command starts: read as fast as it writes."""
        self.is_idle = False
        if self._resume is not None:
            self._resume.cancel()
            self._continue()

    def capture(self, max_bytes: int) -> None:
        """Capture what comes next with another cap, until `take`; what came so far is dropped."""
        self.take()
        self._captured = CappedOutput(max_bytes)
        self.hurry()

    def take(self) -> CappedOutput:
        """What was printed since the last call, including what still lies in the pipe."""
        self._drain()
        taken, self._captured = self._captured, CappedOutput(self._max_bytes)
        self.is_idle = True
        return taken

    def close(self) -> None:
        """Stop reading and close the pipe."""
        if not self._is_closed:
            self._is_closed = True
            if self._resume is not None:
                self._resume.cancel()
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _on_readable(self) -> None:
        data = self._read(_CHUNK_BYTES)
        if data == b"":
            self._loop.remove_reader(self._fd)
        elif self.is_idle:
            self._loop.remove_reader(self._fd)
            self._resume = self._loop.call_later(_IDLE_PAUSE_S, self._continue)

    def _continue(self) -> None:
        self._resume = None
        if not self._is_closed:
            self._loop.add_reader(self._fd, self._on_readable)

    def _drain(self) -> None:
        # Only what is there now: a background process may never stop writing.
        if self._is_closed:
            return
        (available,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0" * 4))
        while available > 0:
            data = self._read(min(available, _CHUNK_BYTES))
            if not data:
                break
            available -= len(data)

    def _read(self, num_bytes: int) -> bytes | None:
        try:
            data = os.read(self._fd, num_bytes)
        except BlockingIOError:
            return None
        self._captured.write(data)
        return data
