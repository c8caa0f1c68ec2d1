"""A container's attached streams: exact reads, and a reader thread."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import time
from typing import Any

from arise.environments.output import CappedOutput

_HEADER_BYTES = 8
_CHUNK_BYTES = 65_536
_IDLE_PAUSE_S = 0.01
_MAX_EXIT_BYTES = 64


class Wire:
    """The raw connection behind an attached stream."""

    def __init__(self, raw: Any) -> None:
        self._raw = getattr(raw, "_sock", raw)
        self._response = getattr(raw, "_response", None)  # kept, because its end closes the socket
        with contextlib.suppress(Exception):
            self._raw.settimeout(None)

    def read(self, num_bytes: int) -> bytes:
        """Exactly `num_bytes`, or less at the end of the stream."""
        data = bytearray()
        while len(data) < num_bytes:
            try:
                part = self._raw.recv(num_bytes - len(data))
            except (OSError, ValueError):
                break
            if not part:
                break
            data += part
        return bytes(data)

    def write(self, data: bytes) -> None:
        """Send everything; blocks while the other side does not read."""
        self._raw.sendall(data)

    def close(self) -> None:
        """End the connection; a read in another thread returns."""
        with contextlib.suppress(Exception):
            self._raw.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self._raw.close()


class MarkedStream:
    """Output of a process in a container, cut where a secret marker says that a command ended.

    Exit codes come through the same stream as the output, because Docker keeps no order between
    two streams. A marker is NUL, a nonce that the command does not know, a space, the exit code
    and NUL. A thread reads all the time, so that no process blocks; between commands it is in no
    hurry, so that a process that floods its output waits.

    Args:
        wire: The connection.
        max_output_bytes: Cap of what is kept of one command's output.
    """

    def __init__(self, wire: Wire, *, max_output_bytes: int) -> None:
        self._wire = wire
        self._max_bytes = max_output_bytes
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._output = CappedOutput(max_output_bytes)
        self._marker = b""
        self._pending = b""
        self._ended: asyncio.Future[str] | None = None
        self._is_idle = True
        self.is_closed = False
        self._thread = threading.Thread(target=self._serve, name="arise-docker-io", daemon=True)
        self._thread.start()

    async def ask(self, message: bytes, *, timeout_s: float) -> tuple[str | None, CappedOutput]:
        r"""Send `message` after a fresh nonce and NUL, and wait for the marker.

        Returns:
            The exit code's text, `None` if the stream ended before; and the output until then.

        Raises:
            TimeoutError: The marker did not come in time; `wait` goes on waiting for it.
        """
        nonce = secrets.token_hex(8).encode()
        with self._lock:
            self._marker, self._ended = b"\0" + nonce + b" ", self._loop.create_future()
            self._is_idle = False
            if self.is_closed:
                self._ended.set_result("")
        # An own thread: a process that does not read its input must not hold up others.
        sending = self._loop.run_in_executor(None, self._send, nonce + b"\0" + message)
        try:
            answer = await self.wait(timeout_s=timeout_s)
        finally:
            if not sending.done():
                sending.add_done_callback(lambda done: done.exception())
        return answer

    async def wait(self, *, timeout_s: float) -> tuple[str | None, CappedOutput]:
        """Wait for the marker of the last `ask`."""
        assert self._ended is not None
        async with asyncio.timeout(timeout_s):
            exit_code = await asyncio.shield(self._ended)
        return exit_code or None, self.take()

    def take(self, *, is_last: bool = False) -> CappedOutput:
        """What was printed since the last call.

        Args:
            is_last: Nobody waits for a marker any more, so that its beginning counts as output.
        """
        with self._lock:
            if is_last or not self._marker:
                self._flush()
            taken, self._output = self._output, CappedOutput(self._max_bytes)
            self._is_idle = True
            return taken

    def close(self) -> None:
        """End the connection and the thread."""
        self._wire.close()

    def _send(self, data: bytes) -> None:
        try:
            self._wire.write(data)
        except (OSError, ValueError):
            self._wire.close()

    def _serve(self) -> None:
        while True:
            header = self._wire.read(_HEADER_BYTES)
            if len(header) < _HEADER_BYTES:
                break
            remaining = int.from_bytes(header[4:], "big")
            while remaining > 0:
                data = self._wire.read(min(remaining, _CHUNK_BYTES))
                if not data:
                    break
                remaining -= len(data)
                self._on_data(data)
            if self._is_idle:
                time.sleep(_IDLE_PAUSE_S)
        with self._lock:
            self.is_closed = True
            self._flush()
            self._tell("")

    def _on_data(self, data: bytes) -> None:
        with self._lock:
            self._pending += data
            if not self._marker:
                self._flush()
                return
            start = self._pending.find(self._marker)
            if start < 0:
                # The marker may be cut in two by the end of this piece.
                keep = min(len(self._pending), len(self._marker) - 1)
                self._output.write(self._pending[: len(self._pending) - keep])
                self._pending = self._pending[len(self._pending) - keep :]
                return
            begin = start + len(self._marker)
            end = self._pending.find(b"\0", begin, begin + _MAX_EXIT_BYTES)
            if end < 0:
                self._output.write(self._pending[:start])
                self._pending = self._pending[start:]
                return
            self._output.write(self._pending[:start])
            exit_code = self._pending[begin:end].decode("ascii", errors="replace")
            self._pending = self._pending[end + 1 :]
            self._marker = b""
            self._tell(exit_code or "?")

    def _flush(self) -> None:
        self._output.write(self._pending)
        self._pending = b""

    def _tell(self, exit_code: str) -> None:
        ended = self._ended
        if ended is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be gone at the run's end
                self._loop.call_soon_threadsafe(_settle, ended, exit_code)


def _settle(future: asyncio.Future[str], value: str) -> None:
    if not future.done():
        future.set_result(value)


def exit_code_of(text: str) -> int:
    """The exit code in a marker; 255 for anything else.

    An agent that is root can read the nonce in the shell's memory and write a marker of its own.
    It gains a wrong exit code, and must not be able to lose its episode that way.
    """
    return int(text) if text.isdecimal() and len(text) <= 3 else 255
