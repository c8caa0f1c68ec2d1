"""Labels that say whose a container is, and the removal of what nobody owns any more."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arise.environments import limits

RUN_LABEL = "arise.run"
OWNER_LABEL = "arise.owner"
TRAJECTORY_LABEL = "arise.trajectory"
TASK_LABEL = "arise.task"
_NUM_REMOVERS = 8
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The trainer's process, so that a later one can tell whether it still runs.

    Attributes:
        machine: Host name.
        boot: Identifies the boot of the machine.
        namespace: Identifies the process namespace.
        pid: Process id in it.
        started_ticks: Start of the process since boot: ids are used again.
    """

    machine: str
    boot: str
    namespace: str
    pid: int
    started_ticks: int

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        info = limits.process_info(os.getpid())
        assert info is not None
        return cls(
            machine=platform.node(),
            boot=_boot(),
            namespace=_namespace(),
            pid=info.pid,
            started_ticks=info.started_ticks,
        )

    def text(self) -> str:
        """As a label's value."""
        return f"{self.machine} {self.boot} {self.namespace} {self.pid} {self.started_ticks}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner that a label names; `None` if it makes no sense."""
        words = text.split()
        try:
            machine, boot, namespace, pid, ticks = words
            return cls(
                machine=machine,
                boot=boot,
                namespace=namespace,
                pid=int(pid),
                started_ticks=int(ticks),
            )
        except ValueError:
            return None

    def is_dead(self) -> bool:
        """Whether it certainly does not run any more; false if that cannot be seen from here."""
        if self.machine != platform.node():
            return False
        if self.boot != _boot():
            return True
        if self.namespace != _namespace():
            return False
        info = limits.process_info(self.pid)
        return info is None or info.is_dead or info.started_ticks != self.started_ticks


def labels_of(run_id: str, *, task: str, trajectory: str) -> dict[str, str]:
    """The labels of one episode's container."""
    return {
        RUN_LABEL: run_id,
        OWNER_LABEL: Owner.current().text(),
        TASK_LABEL: task,
        TRAJECTORY_LABEL: trajectory,
    }


def remove_run(api: Any, run_id: str) -> int:
    """Remove every container of one run.

    Returns:
        How many there were.
    """
    found = api.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})
    return _remove(api, found)


def remove_dead_runs(api: Any) -> int:
    """Remove the containers of every run of this machine whose process is gone.

    Returns:
        How many there were.
    """
    found = api.containers(all=True, filters={"label": OWNER_LABEL})
    dead = [container for container in found if _is_dead(container.get("Labels") or {})]
    num = _remove(api, dead)
    if num:
        _logger.warning("removed %d containers that dead runs left behind", num)
    return num


def _is_dead(labels: Mapping[str, str]) -> bool:
    owner = Owner.parse(labels.get(OWNER_LABEL, ""))
    return owner is not None and owner.is_dead()


def _remove(api: Any, containers: Iterable[Mapping[str, Any]]) -> int:
    ids = [str(container["Id"]) for container in containers]

    def remove(container: str) -> None:
        # Somebody else may remove it at the same time; then it is gone all the same.
        with contextlib.suppress(Exception):
            api.remove_container(container, force=True, v=True)

    if ids:
        with ThreadPoolExecutor(_NUM_REMOVERS) as pool:
            list(pool.map(remove, ids))
    return len(ids)


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip() or "-"
    except OSError:
        return "-"
