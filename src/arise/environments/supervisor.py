"""The host's end of a machine: its process, its pipes, and what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable

from arise.environments import limits
from arise.environments.machine import (
    SUPERVISOR,
    Bubblewrap,
    machine_arguments,
    session_arguments,
)
from arise.environments.output import OutputReader
from arise.environments.resident import agent_script
from arise.errors import ConfigError, SandboxError

_MAX_LINE_BYTES = 4096
_STDERR_BYTES = 4096


class Machine:
    """A running outer sandbox.

    Args:
        bubblewrap: The program.
        uid: Ordinary user id in the machine, and on the host if this process is root.
        storage_bytes: Size of the agent's disk.
        shared_bytes: Size of /dev/shm and of /run.
        max_output_bytes: Cap of captured output.

    Raises:
        SandboxError: The process could not be started.
    """

    def __init__(
        self,
        bubblewrap: Bubblewrap,
        *,
        uid: int,
        storage_bytes: int,
        shared_bytes: int,
        max_output_bytes: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._supervisor_pid: int | None = None
        self._expected = ""
        self._events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._closers: list[Callable[[], None]] = []
        self.is_dead = False
        remote: list[int] = []
        try:
            self._channel, channel = self._make_channel(remote)
            output, errors, info = (self._inbound(remote) for _ in range(3))
            status, replies = self._inbound(remote), self._inbound(remote)
            self._control, control = self._outbound(remote)
            self._commands, commands = self._outbound(remote)
            self._channel_reader = channel
            command = [
                *drop_privileges(uid),
                *machine_arguments(
                    bubblewrap, uid=uid, storage_bytes=storage_bytes, info_fd=info[1]
                ),
                *("/usr/bin/bash", "--norc", "--noprofile", "-c", SUPERVISOR, "supervisor"),
                *map(str, (control, status[1], commands, replies[1], channel, uid)),
                agent_script(channel),
                *session_arguments(bubblewrap, shared_bytes=shared_bytes),
            ]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output[1],
                stderr=errors[1],
                pass_fds=[fd for fd in remote if fd not in (output[1], errors[1])],
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._close_all()
            raise SandboxError(f"could not start a sandbox: {error}") from error
        finally:
            for fd in remote:
                # The channel's read end stays open here: seeking it moves the sandbox's end too.
                if fd != getattr(self, "_channel_reader", None):
                    os.close(fd)
        self.output = self._reader(output[0], max_output_bytes)
        self._errors = self._reader(errors[0], _STDERR_BYTES)
        self._info = info[0]
        _Lines(self._loop, status[0], self._on_status, self._closers)
        _Lines(self._loop, replies[0], self._on_reply, self._closers)
        self._closers.append(lambda: os.close(self._info))

    def send(self, verb: str, *contents: bytes) -> None:
        """Ask the supervisor for something.

        Args:
            verb: `files`, `agent`, `tests WORKDIR` or `read NAME`.
            contents: What it finds in the channel.
        """
        if contents:
            self._fill(contents)
        self._write(self._control, verb)

    def send_command(self, epoch: str, nonce: str, command: bytes) -> None:
        """Give session `epoch` a command, and expect an answer with `nonce`."""
        self._fill((command, b"\0"))
        self._write(self._commands, f"{epoch} {nonce}")

    def expect(self, prefix: str) -> None:
        """Take from now on only replies that begin with `prefix`; an agent may forge others."""
        self._expected = prefix

    async def event(self, timeout_s: float) -> tuple[str, str]:
        """The next event: ("status", line) or ("reply", line).

        Raises:
            TimeoutError: Nothing came in time.
            SandboxError: The machine is dead.
        """
        if self._events.empty():
            if self.is_dead:
                raise SandboxError(f"the sandbox died{self._stderr()}")
            async with asyncio.timeout(timeout_s):
                kind, line = await self._events.get()
        else:
            kind, line = self._events.get_nowait()
        if kind == "closed":
            raise SandboxError(f"the sandbox died{self._stderr()}")
        return kind, line

    async def status(self, timeout_s: float) -> str:
        """The supervisor's next line, replies skipped.

        Raises:
            SandboxError: The machine is dead or did not answer in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    kind, line = await self.event(timeout_s)
                    if kind == "status":
                        return line
        except TimeoutError:
            raise SandboxError(
                f"the sandbox did not answer within {timeout_s:g} s{self._stderr()}"
            ) from None

    def session_pid(self) -> int | None:
        """Host pid of the first process of the session; `None` if none runs."""
        if self._supervisor_pid is None:
            with contextlib.suppress(BlockingIOError, ValueError):
                info = json.loads(os.read(self._info, 4096))
                self._supervisor_pid = int(info["child-pid"])
        if self._supervisor_pid is None or self.is_dead or self._process.poll() is not None:
            return None
        for monitor in limits.children(self._supervisor_pid):
            for first in limits.children(monitor):
                return first
        return None

    def kill_session(self) -> None:
        """Kill the session's first process: the kernel kills all others before it is gone."""
        pid = self.session_pid()
        if pid is not None:
            limits.kill(pid)

    async def close(self) -> None:
        """Kill everything and wait until it is dead."""
        if self._process.poll() is None:
            self.session_pid()
            # Killing the first process of the namespace, not the program that waits for it,
            # makes its exit mean that every process in the machine is dead.
            limits.kill(self._supervisor_pid or self._process.pid)
            if not await self._exited(5.0):
                self._process.kill()
                await self._exited(5.0)
        self.is_dead = True
        self._close_all()

    def _fill(self, contents: tuple[bytes, ...]) -> None:
        os.ftruncate(self._channel, 0)
        os.lseek(self._channel, 0, os.SEEK_SET)
        for content in contents:
            view = memoryview(content)
            while view:
                view = view[os.write(self._channel, view) :]
        os.lseek(self._channel_reader, 0, os.SEEK_SET)

    def _write(self, fd: int, line: str) -> None:
        try:
            os.write(fd, f"{line}\n".encode())
        except (BrokenPipeError, BlockingIOError) as error:
            raise SandboxError(f"the sandbox died{self._stderr()}") from error

    async def _exited(self, patience_s: float) -> bool:
        deadline = self._loop.time() + patience_s
        pause = 0.001
        while self._process.poll() is None:
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    def _on_status(self, line: str | None) -> None:
        if line is None:
            self.is_dead = True
            self._events.put_nowait(("closed", ""))
        else:
            self._events.put_nowait(("status", line))

    def _on_reply(self, line: str | None) -> None:
        if line is not None and self._expected and line.startswith(self._expected):
            self._expected = ""
            self._events.put_nowait(("reply", line))

    def _stderr(self) -> str:
        text = " ".join(self._errors.take().text()[0].split())
        return f": {text}" if text else ""

    def _reader(self, fd: int, max_bytes: int) -> OutputReader:
        reader = OutputReader(fd, max_bytes)
        self._closers.append(reader.close)
        return reader

    def _make_channel(self, remote: list[int]) -> tuple[int, int]:
        writer = os.memfd_create("channel", os.MFD_CLOEXEC)
        self._closers.append(lambda: os.close(writer))
        reader = os.open(f"/proc/self/fd/{writer}", os.O_RDONLY | os.O_CLOEXEC)
        self._closers.append(lambda: os.close(reader))
        remote.append(reader)
        return writer, reader

    def _inbound(self, remote: list[int]) -> tuple[int, int]:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        remote.append(writer)
        return reader, writer

    def _outbound(self, remote: list[int]) -> tuple[int, int]:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        remote.append(reader)
        self._closers.append(lambda: os.close(writer))
        return writer, reader

    def _close_all(self) -> None:
        closers, self._closers = self._closers, []
        for close in closers:
            close()


class _Lines:
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


def drop_privileges(uid: int) -> list[str]:
    """Command prefix that makes root an ordinary user; empty for anybody else.

    A program of its own, not `subprocess`'s `user`, because that forks a large trainer instead
    of using vfork.

    Raises:
        ConfigError: This process is root and the program is missing.
    """
    if os.geteuid() != 0:
        return []
    program = shutil.which("setpriv")
    if program is None:
        raise ConfigError(
            "environment=bubblewrap: the program setpriv (package util-linux) is needed to run "
            "sandboxes as an ordinary user; install it, or do not run as root"
        )
    return [program, f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
