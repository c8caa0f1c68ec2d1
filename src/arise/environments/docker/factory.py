"""Makes containers for episodes, and sees to it that none is left."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import secrets
import signal
import threading
from collections.abc import Sequence

from arise.environments.docker.environment import DockerEnvironment
from arise.environments.docker.hosts import DockerHosts
from arise.environments.docker.images import ImageStore
from arise.environments.docker.labels import RUN_LABEL, remove_dead_runs, remove_run
from arise.environments.docker.runtime import Runtime
from arise.environments.dockerfile import compose_file
from arise.environments.staging import ArchiveCache
from arise.errors import ConfigError, SandboxError
from arise.types import Task

_ARCHIVE_CACHE_BYTES = 256 << 20
_GRADING = ("task", "shared", "separate")
_logger = logging.getLogger(__name__)


class DockerFactory:
    """Makes Docker sandboxes.

    Args:
        hosts: Addresses of Docker hosts (unix, tcp or ssh) over which containers are spread; empty
            takes DOCKER_HOST or the local socket.
        cpus: CPUs of a task that names no number; `None` for no limit.
        memory_mb: Memory of a task that names none, in MiB.
        storage_mb: Disk of a task that names none, in MiB.
        max_processes: Processes and threads of one container.
        max_output_bytes: Cap of one command's output.
        start_timeout_s: Limit on a start, the image's build or pull apart, in seconds.
        start_concurrency: Containers that start at once.
        call_timeout_s: Limit on one answer of Docker, in seconds.
        network: Docker network of tasks that ask for one; `None` refuses them.
        network_by_default: Whether a task that does not say gets a network.
        build_network: Docker network of image builds.
        pull: Whether absent images are pulled.
        grading: `task` grades where the task says, `shared` in the agent's container, `separate`
            in a second one that gets the artifacts.
        disk_check_interval_s: Pause between looks at the containers' disks, in seconds.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[str],
        cpus: float | None,
        memory_mb: int,
        storage_mb: int,
        max_processes: int,
        max_output_bytes: int,
        start_timeout_s: float,
        start_concurrency: int,
        call_timeout_s: float,
        network: str | None,
        network_by_default: bool,
        build_network: str,
        pull: bool,
        grading: str,
        disk_check_interval_s: float,
    ) -> None:
        _require_at_least(
            cpus=(1.0 if cpus is None else cpus, 0.01),
            memory_mb=(memory_mb, 16),
            storage_mb=(storage_mb, 1),
            max_processes=(max_processes, 16),
            max_output_bytes=(max_output_bytes, 2),
            start_timeout_s=(start_timeout_s, 0.1),
            start_concurrency=(start_concurrency, 1),
            call_timeout_s=(call_timeout_s, 1),
            disk_check_interval_s=(disk_check_interval_s, 0.1),
        )
        if grading not in _GRADING:
            raise ConfigError(
                f"environment.grading = {grading!r} is not one of {', '.join(_GRADING)}"
            )
        if network_by_default and network is None:
            raise ConfigError(
                "environment.network_by_default = true needs environment.network, which is null"
            )
        self.run_id = secrets.token_hex(6)
        self._hosts = DockerHosts(hosts, timeout_s=call_timeout_s)
        self._disk_check_interval_s = disk_check_interval_s
        self._num_created = 0
        self.found: list[tuple[str, str]] = []
        self._is_registered = False
        self._watching: asyncio.Task[None] | None = None
        self._owner_pid = os.getpid()
        self._runtime = Runtime(
            run_id=self.run_id,
            hosts=self._hosts,
            images=ImageStore(self._hosts, pull=pull, build_network=build_network),
            archives=ArchiveCache(max_bytes=_ARCHIVE_CACHE_BYTES),
            start_slots=asyncio.Semaphore(start_concurrency),
            cpus=cpus,
            memory_mb=memory_mb,
            storage_mb=storage_mb,
            max_processes=max_processes,
            max_output_bytes=max_output_bytes,
            start_timeout_s=start_timeout_s,
            network=network,
            network_by_default=network_by_default,
            grading=grading,
            watch_disks=self._watch,
        )

    def check(self) -> None:
        """Ask every host for an answer, and remove what dead runs of this machine left there.

        Raises:
            ConfigError: A host does not answer; the message says what to do.
        """
        for host in self._hosts.connect():
            try:
                system = host.api.info()
                remove_dead_runs(host.api)
            except Exception as error:  # the SDK lets errors of every layer below it through
                raise ConfigError(f"environment=docker: {host} does not work: {error}") from error
            if not self._is_registered:
                memory_gb = system.get("MemTotal", 0) / 1e9
                facts = f"{system.get('NCPU')} CPUs, {memory_gb:.0f} GB"
                self.found.append((str(host), f"Docker {system.get('ServerVersion')}, {facts}"))
            if system.get("OSType") != "linux":
                raise ConfigError(
                    f"environment=docker: {host} runs {system.get('OSType')} containers; "
                    "Linux containers are needed"
                )
        if not self._is_registered:
            self._is_registered = True
            # Also for a run that ends without closing: an interrupt during the clean-up.
            atexit.register(self._remove_at_exit)

    def unsupported(self, task: Task) -> str | None:
        """Why `task` cannot run in a container; `None` if it can."""
        spec = task.environment
        if spec.unsupported:
            return spec.unsupported
        if spec.gpus > 0:
            return f"asks for GPUs (gpus = {spec.gpus}); containers here have none"
        try:
            for is_grading in (False, True):
                self._runtime.network_of(spec, is_grading=is_grading)
        except SandboxError as error:
            return str(error)
        if spec.context is not None and compose_file(spec.context) is not None:
            return f"needs docker-compose ({compose_file(spec.context)})"
        has_dockerfile = spec.context is not None and (spec.context / spec.dockerfile).is_file()
        if not has_dockerfile and not spec.docker_image:
            return "has neither environment/Dockerfile nor [environment] docker_image"
        return None

    def create(self, task: Task, *, name: str) -> DockerEnvironment:
        """A container for one episode, not started yet."""
        if not self._is_registered:
            self.check()
        self._num_created += 1
        return DockerEnvironment(self._runtime, task, name=name, number=self._num_created)

    def close(self) -> None:
        """Remove every container of this run and close the connections."""
        self._runtime.archives.clear()
        if not self._is_registered:
            self._hosts.close()
            return
        for host in self._hosts.connect():
            with contextlib.suppress(Exception):
                remove_run(host.api, self.run_id)
            host.templates.clear()
        self._is_registered = False
        atexit.unregister(self._remove_at_exit)
        self._hosts.close()

    def _remove_at_exit(self) -> None:
        if os.getpid() != self._owner_pid:  # a forked child must not end its parent's run
            return
        with contextlib.suppress(ValueError):
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.close()

    def _watch(self) -> None:
        """Look at the containers' disks from now on until none runs."""
        loop = asyncio.get_running_loop()
        if self._watching is None or self._watching.done() or self._watching.get_loop() is not loop:
            self._watching = loop.create_task(self._watch_disks(), name="arise-disk-watchdog")

    async def _watch_disks(self) -> None:
        started = self._runtime.started
        while True:
            await asyncio.sleep(self._disk_check_interval_s)
            if not started:
                return
            for host in self._hosts.connect():
                if host.has_disk_quota or not host.num_containers:
                    continue
                try:
                    found = await self._hosts.call(
                        host,
                        host.api.containers,
                        size=True,
                        filters={"label": f"{RUN_LABEL}={self.run_id}"},
                    )
                    for container in found:
                        environment = started.get(container["Names"][0].lstrip("/"))
                        size = container.get("SizeRw") or 0
                        if environment is not None and size > environment.storage_bytes:
                            await environment.end_for_disk()
                except SandboxError as error:
                    _logger.warning("disk use on %s could not be read: %s", host, error)


def _require_at_least(**limits: tuple[float, float]) -> None:
    """Each value and its least allowed one, by key."""
    for key, (value, least) in limits.items():
        if not value >= least:
            raise ConfigError(f"environment.{key} must be at least {least}, got {value}")
