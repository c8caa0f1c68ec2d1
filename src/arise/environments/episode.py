"""One episode's bubblewrap sandbox: a machine, its agent shell, and grading."""

from __future__ import annotations

import asyncio
import functools
import io
import posixpath
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arise.environments import limits, transfer
from arise.environments.artifacts import unpack
from arise.environments.base import ExecResult
from arise.environments.dockerfile import BuildPlan, NeedsDockerError, plan_environment
from arise.environments.health import wait_until_healthy
from arise.environments.machine import Bubblewrap
from arise.environments.resident import ProcessLimits, agent_script, tests_script
from arise.environments.staging import ArchiveCache, archive, archive_layers
from arise.environments.supervisor import Machine
from arise.errors import SandboxError, VerifierError
from arise.types import Task

_MIB = 1 << 20
_SHARED_BYTES = 64 * _MIB
_ANSWER_TIMEOUT_S = 30.0
_TRANSFER_TIMEOUT_S = 300.0
_REWARD_FILES = ("reward.json", "reward.txt")
_MAX_REWARD_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxHost:
    """What all sandboxes of a factory share.

    Attributes:
        bubblewrap: The program.
        uid: Ordinary user id.
        storage_mb: Default disk, in MiB.
        memory_mb: Default memory, in MiB.
        max_processes: Processes and threads of one session.
        max_output_bytes: Cap of captured output.
        start_timeout_s: Limit on a start, in seconds.
        start_slots: Bounds the starts at once: more only make each of them slower.
        archives: Packed task files.
        started: The sandboxes that run; filled by themselves.
        watchdog: Looks after the memory of `started`.
    """

    bubblewrap: Bubblewrap
    uid: int
    storage_mb: int
    memory_mb: int
    max_processes: int
    max_output_bytes: int
    start_timeout_s: float
    start_slots: asyncio.Semaphore
    archives: ArchiveCache
    started: set[BubblewrapEnvironment] = field(default_factory=set)
    watchdog: limits.MemoryWatchdog


class BubblewrapEnvironment:
    """One episode's machine, with a resident agent shell.

    A shell that dies (an agent can kill its own) is started again on the same files with exit
    code 137; only the death of the machine itself loses the episode.
    """

    def __init__(self, host: SandboxHost, task: Task, *, name: str) -> None:
        self._host = host
        self._task = task
        self._name = name
        self._machine: Machine | None = None
        self._epoch = ""
        self._plan = BuildPlan()
        self._killed_for_memory = False
        self._was_interrupted = False
        self._lock = asyncio.Lock()
        self.memory_bytes = (task.environment.memory_mb or host.memory_mb) * _MIB
        self._storage_bytes = (task.environment.storage_mb or host.storage_mb) * _MIB

    async def start(self) -> None:
        """Create the machine, put the task's files in place and start the shell."""
        host = self._host
        try:
            self._plan = plan_environment(self._task.environment)
        except NeedsDockerError as error:
            raise SandboxError(f"task {self._task.id} needs Docker: {error}") from error
        spec = self._task.environment
        key = ("files", spec.context, spec.dockerfile, spec.skills, self._plan.workdir)
        files = host.archives.get(key, functools.partial(archive, self._plan.files))
        async with host.start_slots:
            self._machine = Machine(
                host.bubblewrap,
                uid=host.uid,
                storage_bytes=self._storage_bytes,
                shared_bytes=_SHARED_BYTES,
                max_output_bytes=host.max_output_bytes,
                mounts=spec.mounts,
            )
            try:
                self._machine.send("files", files)
                status = await self._machine.status(host.start_timeout_s)
                if status != "ok":
                    output = self._machine.stderr()
                    raise SandboxError(f"the task's files do not fit into the sandbox{output}")
                await self._start_shell(host.start_timeout_s)
            except BaseException:
                await self.stop()
                raise
        host.started.add(self)
        host.watchdog.ensure_running()
        check = self._task.environment.healthcheck
        if check is not None:
            try:
                await wait_until_healthy(self, check)
            except BaseException:
                await self.stop()
                raise

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        """Run `command` in the agent's shell; see the protocol."""
        if "\0" in command:
            return ExecResult(exit_code=126, output="bash: the command contains a NUL byte\n")
        async with self._lock:
            return await self._exec(command.encode("utf-8", errors="replace"), timeout_s)

    async def _exec(self, command: bytes, timeout_s: float) -> ExecResult:
        machine = self._usable()
        if not self._epoch:
            raise SandboxError(f"sandbox {self._name}: the agent's session is over")
        begin = time.monotonic()
        note = await self._recover(machine)
        ticks = limits.now_ticks()
        self._killed_for_memory = False
        machine.output.hurry()
        nonce, exit_code = secrets.token_hex(8), None
        machine.expect(nonce)
        self._was_interrupted = True
        machine.send_command(self._epoch, nonce, command)
        try:
            kind, line = await machine.event(timeout_s)
        except TimeoutError:
            note += await self._end_command(machine, ticks)
        else:
            if kind == "status":
                exit_code, note = 137, note + await self._restart_shell()
            else:
                exit_code = int(line.split()[1])
        self._was_interrupted = False
        if self._killed_for_memory:
            note += f"[a process was killed: over the limit of {self.memory_bytes // _MIB} MiB]\n"
        return self._result(machine, exit_code, note, begin)

    async def _recover(self, machine: Machine) -> str:
        """Replace a shell that died between commands, or whose command was cancelled."""
        if not self._was_interrupted and not machine.has_event:
            return ""
        await self._end_session(machine)
        self._was_interrupted = False
        return await self._restart_shell()

    def _result(
        self, machine: Machine, exit_code: int | None, note: str, begin: float
    ) -> ExecResult:
        output, dropped = machine.output.take().text()
        if note and output and not output.endswith("\n"):
            output += "\n"
        return ExecResult(
            exit_code=exit_code,
            output=output + note,
            dropped_bytes=dropped,
            timed_out=exit_code is None,
            duration_s=time.monotonic() - begin,
        )

    async def _end_command(self, machine: Machine, ticks: int) -> str:
        """Kill what the command started; if that is not enough, the whole shell."""
        session = machine.session_pid()
        if session is not None and await limits.kill_started_since(session, ticks, patience_s=5.0):
            try:
                kind, _ = await machine.event(2.0)
                return "" if kind == "reply" else await self._restart_shell()
            except TimeoutError:
                pass
        await self._end_session(machine)
        return await self._restart_shell()

    async def _end_session(self, machine: Machine) -> None:
        """Kill all processes of the session; the supervisor answers when the last is dead."""
        machine.kill_session()
        await machine.status(_ANSWER_TIMEOUT_S)

    async def _start_shell(self, timeout_s: float) -> None:
        machine = self._usable()
        self._epoch = secrets.token_hex(8)
        script = agent_script(
            epoch=self._epoch,
            workdir=self._plan.workdir,
            env={**self._plan.env, **self._task.environment.env},
            limits=self._limits(),
        )
        machine.expect(self._epoch)
        machine.send("agent", script.encode(), b"\0")
        try:
            kind, line = await machine.event(timeout_s)
        except TimeoutError:
            raise SandboxError(
                f"the shell did not start within {timeout_s:g} s{machine.stderr()}"
            ) from None
        if kind != "reply":
            raise SandboxError(f"the shell did not start ({line}){machine.stderr()}")

    async def _restart_shell(self) -> str:
        await self._start_shell(_ANSWER_TIMEOUT_S)
        return f"[the shell was killed; a new one was started in {self._plan.workdir}]\n"

    async def upload(self, source: Path, target: str) -> None:
        """Put a folder's content into the machine, by the agent's shell while it has one."""
        prefix = posixpath.normpath(target).strip("/")
        data = await asyncio.to_thread(archive_layers, (source,), prefix=prefix)
        async with self._lock:
            machine = self._usable()
            if self._epoch:
                result = await self._exec(transfer.unpacking(data), _TRANSFER_TIMEOUT_S)
                done, reason = result.exit_code == 0, result.output[-500:]
            else:
                machine.send("files", data)
                done = await machine.status(_ANSWER_TIMEOUT_S) == "ok"
                reason = machine.stderr()
        if not done:
            raise SandboxError(f"{source} could not be put at {target}: {reason.strip()}")

    async def download(self, source: str, target: Path, *, max_bytes: int) -> None:
        """Copy a file or folder out of the machine, by the agent's shell while it has one."""
        path = posixpath.normpath(source).strip("/")
        if not path or "\n" in path:
            raise SandboxError(f"cannot copy {source!r} out of the sandbox")
        most, lines = 2 * max_bytes + _MIB, []
        async with self._lock:
            machine = self._usable()
            if self._epoch:
                mark = secrets.token_hex(8)
                machine.output.capture(2 * most)
                result = await self._exec(
                    transfer.packing(f"/{path}", mark, most), _TRANSFER_TIMEOUT_S
                )
                lines = transfer.marked_lines(result.output, mark)
            else:
                machine.send(f"fetch {most} {path}")
                while (line := await machine.status(_ANSWER_TIMEOUT_S)).startswith("+"):
                    lines.append(line[1:])
        if not lines:
            raise SandboxError(f"there is nothing at {source} in the sandbox")
        data = transfer.decoded(lines)
        if len(data) >= most:
            raise SandboxError(f"the files to copy out are larger than {max_bytes} bytes")
        await asyncio.to_thread(unpack, io.BytesIO(data), target, max_bytes=max_bytes)

    async def grade(
        self, tests: Path | Sequence[Path], *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        """End the agent's session and run the tests in a fresh one; see the protocol."""
        sources = (tests,) if isinstance(tests, Path) else tuple(tests)
        packed = await asyncio.to_thread(
            self._host.archives.get,
            ("tests", sources),
            functools.partial(archive_layers, sources),
        )
        async with self._lock:
            return await self._grade(packed, env, timeout_s)

    async def _grade(
        self, packed: bytes, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        machine = self._usable()
        if self._epoch:
            self._epoch = ""
            await self._end_session(machine)
        machine.output.take()
        machine.output.hurry()
        script = tests_script(
            workdir=self._plan.workdir,
            container_env={**self._plan.env, **self._task.environment.env},
            env=env,
            limits=self._limits(),
        )
        machine.expect("")
        machine.send(f"tests {self._plan.workdir}", script.encode(), b"\0", packed)
        try:
            _, line = await machine.event(timeout_s)
        except TimeoutError:
            await self._end_session(machine)
            tail = machine.output.take().text()[0][-2000:]
            raise VerifierError(
                f"the tests did not finish within {timeout_s:g} s; output ends: {tail}"
            ) from None
        if not line.startswith("ended"):
            raise SandboxError(f"the tests could not be put in place{machine.stderr()}")
        output = machine.output.take().raw()
        files = {name: await self._read(machine, name) for name in _REWARD_FILES}
        return {**files, "output": output}

    async def _read(self, machine: Machine, name: str) -> bytes | None:
        """The beginning of a file that the tests left; empty if it is not a regular file."""
        machine.output.capture(_MAX_REWARD_BYTES + 1)
        machine.send(f"read {name}")
        status = await machine.status(_ANSWER_TIMEOUT_S)
        data = machine.output.take().raw()
        return None if status == "absent" else data

    async def resume(self) -> None:
        """Give the agent a new shell; the tests are in a place that its sessions do not see."""
        async with self._lock:
            await self._start_shell(self._host.start_timeout_s)
            self._was_interrupted = False

    async def stop(self) -> None:
        """Kill everything in the machine and forget it."""
        machine, self._machine = self._machine, None
        self._host.started.discard(self)
        if machine is not None:
            await machine.close()

    def session_pid(self) -> int | None:
        """Host pid of the shell, for the memory watchdog."""
        return self._machine.session_pid() if self._machine is not None else None

    def on_memory_kill(self) -> None:
        """Remember that the running command lost a process."""
        self._killed_for_memory = True

    def _usable(self) -> Machine:
        if self._machine is None:
            raise SandboxError(f"sandbox {self._name} is not running")
        return self._machine

    def _limits(self) -> ProcessLimits:
        return ProcessLimits(
            max_processes=self._host.max_processes,
            data_bytes=8 * self.memory_bytes,
            file_bytes=self._storage_bytes,
        )
