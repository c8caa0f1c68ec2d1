"""One episode's container: the agent's shell in it, and grading."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import posixpath
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from arise.environments.artifacts import unpack
from arise.environments.base import ExecResult
from arise.environments.docker.container import Container, ContainerLimits
from arise.environments.docker.grading import Grader
from arise.environments.docker.hosts import DockerHost, DockerHosts
from arise.environments.docker.images import ImageStore
from arise.environments.docker.labels import labels_of
from arise.environments.docker.scripts import (
    AGENT_SHELL,
    FRESH_FOLDERS,
    KILLER,
    LOG_FOLDERS,
    agent_environment,
)
from arise.environments.docker.wire import MarkedStream, exit_code_of
from arise.environments.dockerfile import CopiedFile
from arise.environments.health import wait_until_healthy
from arise.environments.output import CappedOutput
from arise.environments.staging import ArchiveCache, archive, archive_layers
from arise.errors import SandboxError
from arise.types import Task

_MIB = 1 << 20
_KILL_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 30.0
_DEATH_PATIENCE_S = 3.0
_SPOOL_BYTES = 4 * _MIB
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What all containers of a factory share.

    Attributes:
        run_id: Labels this run's containers.
        hosts: Where they run.
        images: Where their images come from.
        archives: Packed task files.
        start_slots: Bounds the starts at once.
        cpus: CPUs of a task that names no number.
        memory_mb: Memory of a task that names none, in MiB.
        storage_mb: Disk of a task that names none, in MiB.
        max_processes: Processes and threads of a container.
        max_output_bytes: Cap of one command's output.
        start_timeout_s: Limit on a start without its image, in seconds.
        network: Docker network of tasks that ask for one.
        grading: `task`, `shared` or `separate`.
        started: The environments that run, by container name.
    """

    run_id: str
    hosts: DockerHosts
    images: ImageStore
    archives: ArchiveCache
    start_slots: asyncio.Semaphore
    cpus: float | None
    memory_mb: int
    storage_mb: int
    max_processes: int
    max_output_bytes: int
    start_timeout_s: float
    network: str | None
    grading: str
    started: dict[str, DockerEnvironment] = field(default_factory=dict)


class DockerEnvironment:
    """One episode's container.

    A shell that dies is started again on the same files with exit code 137, and so is a container
    that its own processes ended; only a death that Docker reports loses the episode.
    """

    def __init__(self, runtime: Runtime, task: Task, *, name: str, number: int) -> None:
        self._runtime = runtime
        self._task = task
        self._name = name
        self.container_name = f"arise-{runtime.run_id}-{number}"
        self._labels = labels_of(runtime.run_id, task=task.id, trajectory=name)
        self._held = contextlib.ExitStack()
        self._container: Container | None = None
        self._grader: Grader | None = None
        self._shell: MarkedStream | None = None
        self._workdir = "/"
        self._user = ""
        self._was_interrupted = False
        self._is_session_over = False
        self._is_over_disk = False
        self._lock = asyncio.Lock()
        spec = task.environment
        self.storage_bytes = (spec.storage_mb or runtime.storage_mb) * _MIB

    async def start(self) -> None:
        """Create the container and start the agent's shell."""
        runtime, spec = self._runtime, self._task.environment
        host = self._held.enter_context(runtime.hosts.place())
        try:
            image = await runtime.images.image_of(host, spec)
            async with runtime.start_slots, asyncio.timeout(runtime.start_timeout_s):
                await self._create(host, image)
            runtime.started[self.container_name] = self
            if spec.healthcheck is not None:
                await wait_until_healthy(self, spec.healthcheck)
        except TimeoutError:
            await self.stop()
            raise SandboxError(
                f"the container did not start within {runtime.start_timeout_s:g} s "
                "(environment.start_timeout_s)"
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def _create(self, host: DockerHost, image: str) -> None:
        runtime, spec = self._runtime, self._task.environment
        config = (await runtime.hosts.call(host, host.api.inspect_image, image))["Config"] or {}
        self._workdir = spec.workdir or config.get("WorkingDir") or "/"
        self._user = spec.user or config.get("User") or ""
        if spec.network and runtime.network is None:
            raise SandboxError("the task asks for a network, and environment.network is null")
        self._container = container = Container(runtime.hosts, host, name=self.container_name)
        options: dict[str, Any] = {
            "limits": ContainerLimits(
                cpus=spec.cpus or runtime.cpus,
                memory_bytes=(spec.memory_mb or runtime.memory_mb) * _MIB,
                storage_bytes=self.storage_bytes,
                max_processes=runtime.max_processes,
                network=(runtime.network if spec.network else None) or "none",
            ),
            "labels": self._labels,
            "env": agent_environment(spec.env),
            "workdir": spec.workdir,
        }
        self._grader = Grader(
            runtime.hosts,
            self._task,
            container,
            image=image,
            workdir=self._workdir,
            options=options,
            is_apart=runtime.grading == "separate"
            or (runtime.grading == "task" and self._task.is_graded_apart),
            max_output_bytes=runtime.max_output_bytes,
        )
        await container.create(image, **options)
        await container.put("/", archive(_log_folders()))
        if spec.skills is not None:
            await container.put("/", archive_layers((spec.skills,), prefix="skills"))
        await container.start()
        await self._start_shell()

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        """Run `command` in the agent's shell; see the protocol."""
        if "\0" in command:
            return ExecResult(exit_code=126, output="bash: the command contains a NUL byte\n")
        async with self._lock:
            return await self._exec(command.encode("utf-8", errors="replace"), timeout_s)

    async def _exec(self, command: bytes, timeout_s: float) -> ExecResult:
        self._usable()
        if self._is_session_over:
            raise SandboxError(f"sandbox {self._name}: the agent's session is over")
        begin = time.monotonic()
        note = await self._recover()
        assert self._shell is not None
        exit_code: int | None = None
        self._was_interrupted = True
        try:
            answer, output = await self._shell.ask(command + b"\0", timeout_s=timeout_s)
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

    async def _recover(self) -> str:
        """Replace a shell that died between commands, or whose command was cancelled."""
        if self._was_interrupted:
            _, note = await self._end_command()
            self._was_interrupted = False
            return note
        if self._shell is None or self._shell.is_closed:
            return await self._revive()
        return ""

    async def _end_command(self) -> tuple[CappedOutput, str]:
        """Kill what the command started; if that is not enough, everything in the container."""
        container, shell = self._usable(), self._shell
        if shell is not None and not shell.is_closed:
            try:
                killed = await container.run_script(
                    KILLER, self._shell_pid, timeout_s=_KILL_TIMEOUT_S
                )
                if killed:
                    answer, output = await shell.wait(timeout_s=2.0)
                    if answer is not None:
                        return output, ""
            except (TimeoutError, SandboxError) as error:
                _logger.debug("sandbox %s: the command was not killed: %s", self._name, error)
        taken = shell.take(is_last=True) if shell is not None else CappedOutput(2)
        if not await container.is_running():
            await self._blame(container)
        return taken, await self._restart()

    async def _revive(self) -> str:
        """A new shell in place of one that died, and of its container if that died by itself."""
        container = self._usable()
        try:
            if await container.is_running():
                await self._start_shell()
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
        await container.halt()
        await container.start()
        await self._start_shell()
        note = f"[all processes were killed; a new shell was started in {self._workdir}]\n"
        if self._is_over_disk:
            self._is_over_disk = False
            note = f"[over the disk limit of {self.storage_bytes // _MIB} MiB]\n{note}"
        return note

    async def _start_shell(self) -> None:
        container = self._usable()
        if self._shell is not None:
            self._shell.close()
        self._shell = await container.open_stream(
            AGENT_SHELL,
            user=self._user,
            env={},
            max_output_bytes=self._runtime.max_output_bytes,
        )
        try:
            answer, output = await self._shell.ask(
                self._workdir.encode() + b"\0", timeout_s=_ANSWER_TIMEOUT_S
            )
        except TimeoutError:
            raise SandboxError("the shell did not start in the container") from None
        if answer is None or not answer.isdecimal():
            raise SandboxError(f"the shell did not start: {output.text()[0].strip()[-500:]}")
        self._shell_pid = answer

    async def upload(self, source: Path, target: str) -> None:
        """Put a folder's content into the container."""
        prefix = posixpath.normpath(target).strip("/")
        data = await asyncio.to_thread(archive_layers, (source,), prefix=prefix)
        await self._usable().put("/", data)

    async def download(self, source: str, target: Path, *, max_bytes: int) -> None:
        """Copy a file or folder out of the container."""
        found = await self._usable().get(source)
        if found is None:
            raise SandboxError(f"there is nothing at {source} in the sandbox")
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:
            await asyncio.to_thread(_spool, found[0], spool, 2 * max_bytes + _MIB)
            await asyncio.to_thread(unpack, spool, target, max_bytes=max_bytes)

    async def grade(
        self, tests: Path | Sequence[Path], *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        """End the agent's processes and run the tests; see the protocol."""
        sources = (tests,) if isinstance(tests, Path) else tuple(tests)
        pack = functools.partial(
            archive_layers, sources, prefix="tests", folders=_log_folders(), replaced=FRESH_FOLDERS
        )
        packed = await asyncio.to_thread(self._runtime.archives.get, ("tests", sources), pack)
        async with self._lock:
            container = self._usable()
            assert self._grader is not None
            if not self._is_session_over and not await container.is_running():
                await self._blame(container)
            self._is_session_over = True
            if self._shell is not None:
                self._shell.close()
            return await self._grader.grade(packed, env=env, timeout_s=timeout_s)

    async def resume(self) -> None:
        """Hide the tests and give the agent a new shell."""
        async with self._lock:
            container = self._usable()
            await container.halt()
            await container.put("/", archive(_log_folders(), replaced=FRESH_FOLDERS))
            await container.start()
            await self._start_shell()
            self._is_session_over = self._was_interrupted = False

    async def stop(self) -> None:
        """Remove the container and everything of it."""
        self._runtime.started.pop(self.container_name, None)
        container, self._container = self._container, None
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close()
        removals = [container.remove] if container is not None else []
        if self._grader is not None:
            removals.append(self._grader.close)
            self._grader = None
        for remove in removals:
            try:
                await remove()
            except SandboxError as error:
                _logger.warning("container %s was not removed: %s", self.container_name, error)
        self._held.close()

    async def end_for_disk(self) -> None:
        """Kill everything in the container, because its files are over the limit."""
        container = self._container
        if container is not None and not self._is_session_over:
            self._is_over_disk = True
            await container.halt()

    def _usable(self) -> Container:
        if self._container is None:
            raise SandboxError(f"sandbox {self._name} is not running")
        return self._container


def _log_folders() -> list[CopiedFile]:
    # An agent that is not root writes there too.
    return [CopiedFile(target=name, mode=0o777) for name in LOG_FOLDERS]


def _spool(stream: object, spool: IO[bytes], max_bytes: int) -> None:
    total = 0
    for part in stream:  # type: ignore[attr-defined]
        total += len(part)
        if total > max_bytes:
            raise SandboxError(f"the files to copy out are larger than {max_bytes} bytes")
        spool.write(part)
    spool.seek(0)
