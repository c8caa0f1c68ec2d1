"""Sandboxes without a daemon: one bubblewrap machine per episode.

Each episode has its own file system in memory on top of the host's read-only userland, no
network, no capabilities, and limits on disk, processes and memory. `cpus` of a task is ignored.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from pathlib import Path

from arise.aio import EventLoopThread
from arise.environments import limits
from arise.environments.dockerfile import NeedsDockerError, plan_environment
from arise.environments.episode import BubblewrapEnvironment, SandboxHost
from arise.environments.machine import HOST_NAME, Bubblewrap
from arise.environments.orphans import remove_orphans
from arise.environments.staging import ArchiveCache
from arise.environments.supervisor import drop_privileges
from arise.errors import ConfigError, SandboxError
from arise.types import Task

__all__ = ["BubblewrapEnvironment", "BubblewrapFactory"]

_ARCHIVE_CACHE_BYTES = 256 << 20
_MAX_OPEN_FILES = 65_536
_WATCHDOG_INTERVAL_S = 0.25
_SYSCTLS = (
    (
        "kernel.unprivileged_userns_clone",
        "0",
        "Unprivileged user namespaces are off: run `sysctl kernel.unprivileged_userns_clone=1`.",
    ),
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor forbids user namespaces: run "
        "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or set environment=docker.",
    ),
    (
        "user.max_user_namespaces",
        "0",
        "No user namespaces are allowed: run `sysctl user.max_user_namespaces=10000`.",
    ),
)


class BubblewrapFactory:
    """Makes bubblewrap sandboxes.

    Args:
        sandbox_uid: Ordinary user id of everything in a sandbox (and on the host, as root).
        storage_mb: Disk of a task that asks for none, in MiB; it lies in the host's memory.
        memory_mb: Memory of a task that asks for none, in MiB.
        max_processes: Processes and threads of one sandbox.
        max_output_bytes: Cap of one command's output.
        start_timeout_s: Limit on a start, in seconds.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(
        self,
        *,
        sandbox_uid: int,
        storage_mb: int,
        memory_mb: int,
        max_processes: int,
        max_output_bytes: int,
        start_timeout_s: float,
    ) -> None:
        for key, value, least in (
            ("sandbox_uid", sandbox_uid, 1),
            ("storage_mb", storage_mb, 1),
            ("memory_mb", memory_mb, 16),
            ("max_processes", max_processes, 8),
            ("max_output_bytes", max_output_bytes, 2),
            ("start_timeout_s", start_timeout_s, 0.1),
        ):
            if not value >= least:
                raise ConfigError(f"environment.{key} must be at least {least}, got {value}")
        self._uid = sandbox_uid
        self._storage_mb = storage_mb
        self._memory_mb = memory_mb
        self._max_processes = max_processes
        self._max_output_bytes = max_output_bytes
        self._start_timeout_s = start_timeout_s
        self._host: SandboxHost | None = None

    def _get_host(self) -> SandboxHost:
        """What the sandboxes share; looking for the program waits for the first use."""
        if self._host is None:
            bubblewrap = Bubblewrap.find()
            drop_privileges(self._uid)
            _raise_open_files()
            started: set[BubblewrapEnvironment] = set()
            self._host = SandboxHost(
                bubblewrap=bubblewrap,
                uid=self._uid,
                storage_mb=self._storage_mb,
                memory_mb=self._memory_mb,
                max_processes=self._max_processes,
                max_output_bytes=self._max_output_bytes,
                start_timeout_s=self._start_timeout_s,
                start_slots=asyncio.Semaphore(2 * (os.cpu_count() or 1)),
                archives=ArchiveCache(max_bytes=_ARCHIVE_CACHE_BYTES),
                started=started,
                watchdog=limits.MemoryWatchdog(
                    interval_s=_WATCHDOG_INTERVAL_S, watched=lambda: started
                ),
            )
        return self._host

    def check(self) -> None:
        """Start one sandbox and run a command in it; remove what killed trainers left.

        Raises:
            ConfigError: That does not work here; the message says what to do.
        """
        self._get_host()
        remove_orphans(HOST_NAME)
        loop = EventLoopThread()
        try:
            loop.run(self._probe(), timeout_s=2 * self._start_timeout_s)
        except (SandboxError, TimeoutError) as error:
            raise ConfigError(
                f"environment=bubblewrap does not work on this machine ({error}). {_advice()}"
            ) from error
        finally:
            loop.close()

    async def _probe(self) -> None:
        task = Task(id="check", instruction="", path=Path("/"), tests=Path("/nonexistent"))
        environment = self.create(task, name="check")
        try:
            await environment.start()
            result = await environment.exec("echo works", timeout_s=self._start_timeout_s)
        finally:
            await environment.stop()
        if result.output != "works\n":
            raise SandboxError(f"a command gave {result.output[-200:]!r}")

    def unsupported(self, task: Task) -> str | None:
        """Why `task` needs something else than bubblewrap; `None` if it does not."""
        if task.environment.unsupported:
            return task.environment.unsupported
        if task.is_graded_apart:
            return "needs Docker: grading in a second container"
        if task.verifier_user not in (None, "root", "0"):
            return f"needs Docker: the tests' user {task.verifier_user}"
        try:
            plan_environment(task.environment)
        except NeedsDockerError as error:
            return f"needs Docker: {error}"
        return None

    def create(self, task: Task, *, name: str) -> BubblewrapEnvironment:
        """A sandbox for one episode, not started yet."""
        return BubblewrapEnvironment(self._get_host(), task, name=name)

    def close(self) -> None:
        """Forget staged archives and remove a temporary copy of the program."""
        host, self._host = self._host, None
        if host is not None:
            host.archives.clear()
            if host.bubblewrap.temporary is not None:
                shutil.rmtree(host.bubblewrap.temporary, ignore_errors=True)


def _raise_open_files() -> None:
    """A sandbox costs eight open files, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _advice() -> str:
    """What most likely keeps bubblewrap from working here."""
    found = [text for path, value, text in _SYSCTLS if _read_sysctl(path) == value]
    return " ".join(found) or (
        "Unprivileged user namespaces must be allowed (in a container: by its seccomp profile "
        "too), and the kernel must be 5.14 or newer."
    )


def _read_sysctl(name: str) -> str:
    path = Path("/proc/sys", name.replace(".", "/"))
    return path.read_text().strip() if path.is_file() else ""
