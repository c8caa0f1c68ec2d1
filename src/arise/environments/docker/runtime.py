"""What all containers of one run share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arise.environments.docker.hosts import DockerHosts
from arise.environments.docker.images import ImageStore
from arise.environments.staging import ArchiveCache
from arise.errors import SandboxError
from arise.types import EnvironmentSpec

if TYPE_CHECKING:
    from arise.environments.docker.environment import DockerEnvironment


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
        network: Docker network of tasks that ask for one; `None` refuses them.
        network_by_default: Whether a task that does not say gets a network.
        grading: `task`, `shared` or `separate`.
        watch_disks: To be called when one more environment runs.
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
    network_by_default: bool
    grading: str
    watch_disks: Callable[[], None]
    started: dict[str, DockerEnvironment] = field(default_factory=dict)

    def network_of(self, spec: EnvironmentSpec, *, is_grading: bool = False) -> str:
        """The Docker network of a task's agent, or of its tests.

        Raises:
            SandboxError: It needs one, and `environment.network` is null.
        """
        wanted = spec.network
        if is_grading and spec.tests_network is not None:
            wanted = spec.tests_network
        if not (self.network_by_default if wanted is None else wanted):
            return "none"
        if self.network is None:
            raise SandboxError("asks for a network, and environment.network is null")
        return self.network
