"""One episode's container: its start, files in and out, grading, and removal."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import posixpath
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from arise.environments.artifacts import unpack
from arise.environments.base import ExecResult
from arise.environments.docker.container import Container, ContainerLimits
from arise.environments.docker.grading import Grader
from arise.environments.docker.hosts import DockerHost
from arise.environments.docker.labels import labels_of
from arise.environments.docker.runtime import Runtime
from arise.environments.docker.scripts import FRESH_FOLDERS, LOG_FOLDERS, agent_environment
from arise.environments.docker.shell import AgentShell
from arise.environments.dockerfile import CopiedFile
from arise.environments.health import wait_until_healthy
from arise.environments.staging import archive, archive_layers, entry
from arise.errors import SandboxError
from arise.types import Task

_MIB = 1 << 20
_SPOOL_BYTES = 4 * _MIB
_logger = logging.getLogger(__name__)


class DockerEnvironment:
    """One episode's container.

    Args:
        runtime: What all containers of the run share.
        task: The task.
        name: Labels it for people.
        number: Makes the container's name unique in the run.
    """

    def __init__(self, runtime: Runtime, task: Task, *, name: str, number: int) -> None:
        self._runtime = runtime
        self._task = task
        self._name = name
        self.container_name = f"arise-{runtime.run_id}-{number}"
        self._held = contextlib.ExitStack()
        self._container: Container | None = None
        self._grader: Grader | None = None
        self._shell: AgentShell | None = None
        self._is_session_over = False
        self._lock = asyncio.Lock()
        self.storage_bytes = (task.environment.storage_mb or runtime.storage_mb) * _MIB

    async def start(self) -> None:
        """Create the container and start the agent's shell."""
        runtime, spec = self._runtime, self._task.environment
        host = self._held.enter_context(runtime.hosts.place())
        try:
            image = await runtime.images.image_of(host, spec)
            async with runtime.start_slots, asyncio.timeout(runtime.start_timeout_s):
                await self._create(host, image)
            runtime.started[self.container_name] = self
            runtime.watch_disks()
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
        workdir = spec.workdir or config.get("WorkingDir") or "/"
        self._container = container = Container(runtime.hosts, host, name=self.container_name)
        options = self._options()
        self._grader = Grader(
            runtime.hosts,
            self._task,
            container,
            image=image,
            workdir=workdir,
            options=options,
            network=runtime.network_of(spec, is_grading=True),
            is_apart=runtime.grading == "separate"
            or (runtime.grading == "task" and self._task.is_graded_apart),
            max_output_bytes=runtime.max_output_bytes,
        )
        await container.create(image, **options)
        await container.put("/", archive(_log_folders()))
        if spec.skills is not None:
            await container.put("/", archive_layers((spec.skills,), prefix="skills"))
        elif spec.skills_dir and spec.skills_dir != "/skills":
            await container.put("/", entry("skills", link=spec.skills_dir))
        await container.start()
        self._shell = AgentShell(
            container,
            name=self._name,
            user=spec.user or config.get("User") or "",
            workdir=workdir,
            max_output_bytes=runtime.max_output_bytes,
            storage_bytes=self.storage_bytes,
        )
        await self._shell.start()

    def _options(self) -> dict[str, Any]:
        """What the container is created with, and any further one of this episode."""
        runtime, spec = self._runtime, self._task.environment
        return {
            "limits": ContainerLimits(
                cpus=spec.cpus or runtime.cpus,
                memory_bytes=(spec.memory_mb or runtime.memory_mb) * _MIB,
                storage_bytes=self.storage_bytes,
                max_processes=runtime.max_processes,
                network=runtime.network_of(spec),
            ),
            "labels": labels_of(runtime.run_id, task=self._task.id, trajectory=self._name),
            "env": agent_environment(spec.env),
            "workdir": spec.workdir,
            "mounts": spec.mounts,
        }

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        """Run `command` in the agent's shell; see the protocol."""
        if "\0" in command:
            return ExecResult(exit_code=126, output="bash: the command contains a NUL byte\n")
        async with self._lock:
            return await self._exec(command.encode("utf-8", errors="replace"), timeout_s)

    async def _exec(self, command: bytes, timeout_s: float) -> ExecResult:
        self._usable()
        if self._is_session_over or self._shell is None:
            raise SandboxError(f"sandbox {self._name}: the agent's session is over")
        return await self._shell.run(command, timeout_s=timeout_s)

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
            self._usable()
            assert self._grader is not None
            assert self._shell is not None
            if not self._is_session_over:
                await self._shell.require_alive_or_own_end()
            self._is_session_over = True
            self._shell.detach()
            return await self._grader.grade(packed, env=env, timeout_s=timeout_s)

    async def resume(self) -> None:
        """Hide the tests and give the agent a new shell."""
        async with self._lock:
            container = self._usable()
            await container.halt()
            await container.put("/", archive(_log_folders(), replaced=FRESH_FOLDERS))
            await container.use_network(self._runtime.network_of(self._task.environment))
            await container.start()
            assert self._shell is not None
            await self._shell.start()
            self._is_session_over = False

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
        if self._shell is not None and not self._is_session_over:
            await self._shell.end_for_disk()

    def _usable(self) -> Container:
        if self._container is None:
            raise SandboxError(f"sandbox {self._name} is not running")
        return self._container


def _log_folders() -> list[CopiedFile]:
    # An agent that is not root writes there too.
    return [CopiedFile(target=name, mode=0o777) for name in LOG_FOLDERS]


def _spool(stream: Iterator[bytes], spool: IO[bytes], max_bytes: int) -> None:
    total = 0
    for part in stream:
        total += len(part)
        if total > max_bytes:
            raise SandboxError(f"the files to copy out are larger than {max_bytes} bytes")
        spool.write(part)
    spool.seek(0)
