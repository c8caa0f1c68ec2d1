"""The host's end of a machine: its process, its pipes, and what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable

from arise.environments import limits
from arise.environments.machine import (
    SUPERVISOR,
    Bubblewrap,
    Mounts,
    machine_arguments,
    session_arguments,
)
from arise.environments.output import OutputReader
from arise.environments.pipes import LineReader, Pipes
from arise.errors import ConfigError, SandboxError

_STDERR_BYTES = 4096


class Machine:
    """A running outer sandbox.

    Args:
        bubblewrap: The program.
        uid: Ordinary user id in the machine, and on the host if this process is root.
        storage_bytes: Size of the agent's disk.
        shared_bytes: Size of /dev/shm and of /run.
        max_output_bytes: Cap of captured output.
        mounts: Folders of this host that sessions see read-only, with their places.

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
        mounts: Mounts = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._supervisor_pid: int | None = None
        self._info_text = b""
        self._expected = ""
        self._events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._closers: list[Callable[[], None]] = []
        self.is_dead = False
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as theirs:
            pipes = Pipes(opened, theirs)
            output, errors, self._info = (pipes.inbound() for _ in range(3))
            status, replies = pipes.inbound(), pipes.inbound()
            self._control, self._commands = pipes.outbound(), pipes.outbound()
            self._channel, self._channel_reader = pipes.channel()
            # The order is that of the supervisor's positional parameters.
            remote = [self._control, status, self._commands, replies, self._channel_reader]
            command = [
                *drop_privileges(uid),
                *machine_arguments(
                    bubblewrap,
                    uid=uid,
                    storage_bytes=storage_bytes,
                    info_fd=pipes.remote_of(self._info),
                    mounts=mounts,
                ),
                *("/usr/bin/bash", "--norc", "--noprofile", "-c", SUPERVISOR, "supervisor"),
                *(str(pipes.remote_of(fd)) for fd in remote),
                str(uid),
                *session_arguments(bubblewrap, shared_bytes=shared_bytes, mounts=mounts),
            ]
            self._process = _spawn(command, pipes, output=output, errors=errors)
            opened.pop_all()
        for fd in (self._info, self._control, self._commands, self._channel, self._channel_reader):
            self._closers.append(functools.partial(os.close, fd))
        self.output = self._reader(output, max_output_bytes)
        self._errors = self._reader(errors, _STDERR_BYTES)
        LineReader(self._loop, status, self._on_status, self._closers)
        LineReader(self._loop, replies, self._on_reply, self._closers)

    def send(self, verb: str, *contents: bytes) -> None:
        """Ask the supervisor for something.

        Args:
            verb: `files`, `agent`, `tests WORKDIR`, `read NAME` or `fetch BYTES PATH`.
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
        events = [self._events.get_nowait() for _ in range(self._events.qsize())]
        for event in events:
            if event[0] != "reply":
                self._events.put_nowait(event)

    @property
    def has_event(self) -> bool:
        """Whether something was reported that nobody waited for."""
        return not self._events.empty()

    async def event(self, timeout_s: float) -> tuple[str, str]:
        """The next event: ("status", line) or ("reply", line).

        Raises:
            TimeoutError: Nothing came in time.
            SandboxError: The machine is dead.
        """
        if self._events.empty():
            if self.is_dead:
                raise SandboxError(f"the sandbox died{self.stderr()}")
            async with asyncio.timeout(timeout_s):
                kind, line = await self._events.get()
        else:
            kind, line = self._events.get_nowait()
        if kind == "closed":
            raise SandboxError(f"the sandbox died{self.stderr()}")
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
                f"the sandbox did not answer within {timeout_s:g} s{self.stderr()}"
            ) from None

    def session_pid(self) -> int | None:
        """Host pid of the first process of the session; `None` if none runs."""
        if self._supervisor_pid is None:
            with contextlib.suppress(BlockingIOError, ValueError):
                self._info_text += os.read(self._info, 4096)
                self._supervisor_pid = int(json.loads(self._info_text)["child-pid"])
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
        try:
            if self._process.poll() is None:
                self.session_pid()
                # Killing the first process of the namespace, not the program that waits for it,
                # makes its exit mean that every process in the machine is dead.
                limits.kill(self._supervisor_pid or self._process.pid)
                if not await self._exited(5.0):
                    self._process.kill()
                    await self._exited(5.0)
        finally:
            self.is_dead = True
            self._events.put_nowait(("closed", ""))
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
            raise SandboxError(f"the sandbox died{self.stderr()}") from error

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

    def stderr(self) -> str:
        """What the machine complained about since the last call, as `": text"`, or nothing."""
        text = " ".join(self._errors.take().text()[0].split())
        return f": {text}" if text else ""

    def _reader(self, fd: int, max_bytes: int) -> OutputReader:
        reader = OutputReader(fd, max_bytes)
        self._closers.append(reader.close)
        return reader

    def _close_all(self) -> None:
        closers, self._closers = self._closers, []
        for close in closers:
            close()


def _spawn(
    command: list[str], pipes: Pipes, *, output: int, errors: int
) -> subprocess.Popen[bytes]:
    stdout, stderr = pipes.remote_of(output), pipes.remote_of(errors)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[fd for fd in pipes.inherited() if fd not in (stdout, stderr)],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"could not start a sandbox: {error}") from error


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
