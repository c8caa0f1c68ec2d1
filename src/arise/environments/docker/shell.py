"""The agent's resident shell in a container: commands, time-outs, and coming back from the dead."""

from __future__ import annotations

import asyncio
import logging
import time

from arise.environments.base import ExecResult
from arise.environments.docker.container import Container
from arise.environments.docker.scripts import AGENT_SHELL, KILLER
from arise.environments.docker.wire import MarkedStream, exit_code_of
from arise.environments.output import CappedOutput
from arise.errors import SandboxError

_MIB = 1 << 20
_KILL_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 30.0
_DEATH_PATIENCE_S = 3.0
_logger = logging.getLogger(__name__)


class AgentShell:
    """A shell that runs one command after the other, each in a shell of its own.

    It is started again, with exit code 137, if it dies, and so is its container if its own
    processes ended that; only a death that Docker reports raises `SandboxError`.

    Args:
        container: Where it runs; running.
        name: The sandbox, for people.
        user: Who runs it; empty for the image's user.
        workdir: Where the first command starts.
        max_output_bytes: Cap of one command's output.
        storage_bytes: The container's disk, for the note after it was full.
    """

    def __init__(
        self,
        container: Container,
        *,
        name: str,
        user: str,
        workdir: str,
        max_output_bytes: int,
        storage_bytes: int,
    ) -> None:
        self._container: Container | None = container
        self._name = name
        self._user = user
        self._workdir = workdir
        self._max_output_bytes = max_output_bytes
        self._storage_bytes = storage_bytes
        self._stream: MarkedStream | None = None
        self._pid = ""
        self._was_interrupted = False
        self._is_over_disk = False
        self._halting = asyncio.Lock()

    async def start(self) -> None:
        """Start it in the running container, in place of an earlier one.

        Raises:
            SandboxError: It does not answer.
        """
        container = self._usable()
        self.detach()
        self._stream = await container.open_stream(
            AGENT_SHELL, user=self._user, env={}, max_output_bytes=self._max_output_bytes
        )
        try:
            answer, output = await self._stream.ask(
                self._workdir.encode() + b"\0", timeout_s=_ANSWER_TIMEOUT_S
            )
        except TimeoutError:
            raise SandboxError("the shell did not start in the container") from None
        if answer is None or not answer.isdecimal():
            raise SandboxError(f"the shell did not start: {output.text()[0].strip()[-500:]}")
        self._pid = answer
        self._was_interrupted = False

    async def run(self, command: bytes, *, timeout_s: float) -> ExecResult:
        """Run one command; see `Environment.exec`.

        Raises:
            SandboxError: The container was ended from outside, or stopped.
        """
        self._usable()
        begin = time.monotonic()
        note = await self._recover()
        assert self._stream is not None
        exit_code: int | None = None
        self._was_interrupted = True
        try:
            answer, output = await self._stream.ask(command + b"\0", timeout_s=timeout_s)
        except TimeoutError:
            output, more = await self._end_command()
            note += more
        else:
            exit_code = 137 if answer is None else exit_code_of(answer)
            if answer is None:
                note += await self._revive()
        self._was_interrupted = False
        text, dropped = output.text()
        if note and text and not text.endswith("\n"):
            text += "\n"
        return ExecResult(
            exit_code=exit_code,
            output=text + note,
            dropped_bytes=dropped,
            timed_out=exit_code is None,
            duration_s=time.monotonic() - begin,
        )

    async def end_for_disk(self) -> None:
        """Kill everything in the container, because its files are over the limit.

        Not a second time before there is a new shell: the files are still there while it starts.
        """
        container = self._container
        if container is not None and not self._is_over_disk:
            self._is_over_disk = True
            try:
                async with self._halting:
                    await container.halt()
            except SandboxError:
                self._is_over_disk = False  # the next look tries again
                raise

    async def require_alive_or_own_end(self) -> None:
        """Raise if the container does not run, and somebody else than its processes ended it."""
        container = self._usable()
        if not await container.is_running():
            await self._blame(container)

    def detach(self) -> None:
        """Drop the connection to the shell; the container goes on."""
        if self._stream is not None:
            self._stream.close()

    def close(self) -> None:
        """Drop the connection for good: a command that runs raises `SandboxError`."""
        self._container = None
        self.detach()

    async def _recover(self) -> str:
        """Replace a shell that died between commands, or whose command was cancelled."""
        if self._was_interrupted:
            _, note = await self._end_command()
            self._was_interrupted = False
            return note
        if self._stream is None or self._stream.is_closed:
            return await self._revive()
        return ""

    async def _end_command(self) -> tuple[CappedOutput, str]:
        """Kill what the command started; if that is not enough, everything in the container."""
        container, stream = self._usable(), self._stream
        if stream is not None and not stream.is_closed:
            try:
                killed = await container.run_script(KILLER, self._pid, timeout_s=_KILL_TIMEOUT_S)
                if killed:
                    answer, output = await stream.wait(timeout_s=2.0)
                    if answer is not None:
                        return output, ""
            except (TimeoutError, SandboxError) as error:
                _logger.debug("sandbox %s: the command was not killed: %s", self._name, error)
        taken = stream.take(is_last=True) if stream is not None else CappedOutput(2)
        await self.require_alive_or_own_end()
        return taken, await self._restart()

    async def _revive(self) -> str:
        """A new shell in place of one that died, and of its container if that died by itself."""
        container = self._usable()
        try:
            if await container.is_running():
                await self.start()
                return f"[the shell was killed; a new one was started in {self._workdir}]\n"
        except SandboxError:
            # What killed the shell may just be killing the container as well.
            if not await container.ended(patience_s=_DEATH_PATIENCE_S):
                raise
        await self._blame(container)
        return await self._restart()

    async def _blame(self, container: Container) -> None:
        """Raise if the container, which does not run, was ended by somebody else."""
        if self._is_over_disk:
            return
        reason = await container.death_from_outside()
        if reason is not None:
            raise SandboxError(f"sandbox {self._name} died: {reason}")

    async def _restart(self) -> str:
        container = self._usable()
        # A halt for the disk that is under way must not hit the new start.
        async with self._halting:
            await container.halt()
            await container.start()
        await self.start()
        note = f"[all processes were killed; a new shell was started in {self._workdir}]\n"
        if self._is_over_disk:
            self._is_over_disk = False
            note = f"[over the disk limit of {self._storage_bytes // _MIB} MiB]\n{note}"
        return note

    def _usable(self) -> Container:
        if self._container is None:
            raise SandboxError(f"sandbox {self._name} is not running")
        return self._container
