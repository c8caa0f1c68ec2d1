"""One container: its creation with every limit, its life, and the files in it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from arise.environments.docker.hosts import DockerHost, DockerHosts, is_missing
from arise.environments.docker.scripts import BASH, FIRST_PROCESS
from arise.environments.docker.wire import MarkedStream, Wire
from arise.errors import SandboxError

_MIB = 1 << 20
_SHM_BYTES = 64 * _MIB
_STOP_TIMEOUT_S = 30
# Beyond what Docker leaves out by itself; none of them is of use without a network.
_DROPPED_CAPABILITIES = ("NET_RAW", "MKNOD", "AUDIT_WRITE", "SETFCAP")
# Bits of a mode as Docker reports it.
IS_LINK, IS_FOLDER = 1 << 27, 1 << 31
_QUOTA_REFUSAL = "storage-opt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """What one container may use.

    Attributes:
        cpus: Number of CPUs; `None` for no limit.
        memory_bytes: Memory, with no swap besides.
        storage_bytes: Disk: a quota where Docker can, else of one file, with a watchdog for all.
        max_processes: Processes and threads.
        network: Docker network; `none` for no network.
    """

    cpus: float | None
    memory_bytes: int
    storage_bytes: int
    max_processes: int
    network: str


class Container:
    """A container on a host. Every method raises `SandboxError` if Docker refuses.

    Args:
        hosts: Makes calls.
        host: Where it is.
        name: Its unique name; it is removed by it even if its creation was cut short.
    """

    def __init__(self, hosts: DockerHosts, host: DockerHost, *, name: str) -> None:
        self._hosts = hosts
        self.host = host
        self.name = name
        self._stdin: Wire | None = None
        self._network = ""

    async def _call(self, method: str, /, *args: Any, **kw: Any) -> Any:
        return await self._hosts.call(self.host, getattr(self.host.api, method), *args, **kw)

    async def create(
        self,
        image: str,
        *,
        limits: ContainerLimits,
        labels: Mapping[str, str],
        env: Mapping[str, str],
        workdir: str | None,
        mounts: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Create it, not started yet; with a disk quota if the host has any."""
        if self.host.has_disk_quota is not False:
            try:
                await self._create(image, limits, labels, env, workdir, mounts, quota=True)
                self.host.has_disk_quota = True
                return
            except SandboxError as error:
                if _QUOTA_REFUSAL not in str(error):
                    raise
                self.host.has_disk_quota = False
        await self._create(image, limits, labels, env, workdir, mounts, quota=False)

    async def _create(
        self,
        image: str,
        limits: ContainerLimits,
        labels: Mapping[str, str],
        env: Mapping[str, str],
        workdir: str | None,
        mounts: Sequence[tuple[str, str]],
        *,
        quota: bool,
    ) -> None:
        api = self.host.api
        self._network = limits.network
        config = api.create_host_config(
            init=True,
            binds={source: {"bind": target, "mode": "ro"} for source, target in mounts},
            network_mode=limits.network,
            security_opt=["no-new-privileges"],
            cap_drop=list(_DROPPED_CAPABILITIES),
            pids_limit=limits.max_processes,
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,
            shm_size=_SHM_BYTES,
            ipc_mode="private",
            log_config={"Type": "none", "Config": {}},
            ulimits=[
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "fsize", "Soft": limits.storage_bytes, "Hard": limits.storage_bytes},
            ],
            storage_opt={"size": str(limits.storage_bytes)} if quota else None,
        )
        if limits.cpus is not None:
            config["NanoCpus"] = round(limits.cpus * 1e9)
        await self._call(
            "create_container",
            image,
            command=[],
            # Without the image's entry point, and as root whatever the agent's user is.
            entrypoint=list(FIRST_PROCESS),
            user="0",
            hostname="sandbox",
            name=self.name,
            labels=dict(labels),
            environment=dict(env),
            working_dir=workdir,
            stdin_open=True,
            healthcheck={"Test": ["NONE"]},
            host_config=config,
        )

    async def start(self) -> None:
        """Start it, or start it again on the same files."""
        # Attached first: the first process ends when nobody holds its input.
        self._release()
        raw = await self._call("attach_socket", self.name, params={"stdin": 1, "stream": 1})
        self._stdin = Wire(raw)
        await self._call("start", self.name)

    async def use_network(self, network: str) -> None:
        """Give it another network, while it does not run."""
        if network != self._network:
            await self._call("disconnect_container_from_network", self.name, self._network)
            await self._call("connect_container_to_network", self.name, network)
            self._network = network

    async def halt(self) -> None:
        """Kill every process in it, and wait until they are dead."""
        with contextlib.suppress(SandboxError):
            await self._call("kill", self.name)
        await self._call("wait", self.name, timeout=_STOP_TIMEOUT_S)
        self._release()

    async def remove(self) -> None:
        """Kill and remove it with its volumes; no error if it is not there."""
        self._release()
        try:
            await self._call("remove_container", self.name, force=True, v=True)
        except SandboxError as error:
            if not is_missing(error) and "already in progress" not in str(error):
                raise

    async def open_stream(
        self, script: str, *, user: str, env: Mapping[str, str], max_output_bytes: int
    ) -> MarkedStream:
        """Start `script` in it with streams attached."""
        created = await self._call(
            "exec_create",
            self.name,
            [*BASH, script, "bash"],
            stdin=True,
            user=user,
            environment=dict(env),
            workdir="/",
        )
        raw = await self._call("exec_start", created["Id"], socket=True)
        return MarkedStream(Wire(raw), max_output_bytes=max_output_bytes)

    async def run_script(self, script: str, argument: str, *, timeout_s: float) -> bool:
        """Run `script` as root to its end; returns whether it gave 0 in time."""
        created = await self._call(
            "exec_create", self.name, [*BASH, script, "bash", argument], user="0", workdir="/"
        )
        await self._call("exec_start", created["Id"], detach=True)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline:
            state = await self._call("exec_inspect", created["Id"])
            if not state["Running"]:
                return state["ExitCode"] == 0
            await asyncio.sleep(0.02)
        return False

    async def is_running(self) -> bool:
        """Whether its first process lives."""
        return bool((await self._call("inspect_container", self.name))["State"]["Running"])

    async def ended(self, *, patience_s: float) -> bool:
        """Whether it does not run, or stops running within `patience_s` seconds."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while await self.is_running():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def death_from_outside(self) -> str | None:
        """Why a container that is not running died, unless its own processes ended it.

        An agent can end its container in many ways, and must not escape a reward of 0 by it. So
        only what Docker itself reports counts: a kill or stop that somebody asked for, an
        exhausted memory, a removal.
        """
        try:
            state = (await self._call("inspect_container", self.name))["State"]
        except SandboxError as error:
            if is_missing(error):
                return "the container was removed"
            raise
        started, finished = _seconds(state["StartedAt"]), _seconds(state["FinishedAt"])
        if state.get("Error"):
            return str(state["Error"])
        found = await self._call(
            "events",
            since=f"{started:.6f}",
            until=f"{finished + 0.01:.6f}",
            filters={"container": self.name, "event": ["kill", "oom"]},
            decode=True,
        )
        events = await asyncio.to_thread(_actions, found)
        if "kill" in events:
            return "the container was killed from outside"
        # An earlier command may have run out of memory without ending the container.
        if any(finished - at < 2.0 for at in events.get("oom", ())):
            return "the container ran out of memory"
        return None

    async def changes(self) -> list[tuple[str, int]]:
        """(path, kind) of what differs from the image: 0 modified, 1 added, 2 deleted."""
        found = await self._call("diff", self.name)
        return [(entry["Path"], entry["Kind"]) for entry in found or ()]

    async def put(self, folder: str, archive: bytes | Iterator[bytes]) -> None:
        """Unpack an archive in it; works whether it runs or not."""
        await self._call("put_archive", self.name, folder, archive)

    async def get(self, path: str) -> tuple[Iterator[bytes], Mapping[str, Any]] | None:
        """The archive of a path and what it is; `None` if there is nothing."""
        try:
            stream, status = await self._call("get_archive", self.name, path)
        except SandboxError as error:
            if is_missing(error) or "not a directory" in str(error):
                return None
            raise
        return stream, status

    async def kind(self, path: str) -> tuple[int, str] | None:
        """Type bits and link target of a path; `None` if there is nothing."""
        try:
            status = await self._hosts.call(self.host, _stat, self.host.api, self.name, path)
        except SandboxError as error:
            if is_missing(error) or "not a directory" in str(error):
                return None
            raise
        return int(status["mode"]) & (IS_LINK | IS_FOLDER), str(status["linkTarget"])

    async def read(self, path: str, *, max_bytes: int) -> bytes | None:
        """The beginning of a file; empty if it is no regular file, `None` if it is not there."""
        found = await self.get(path)
        if found is None:
            return None
        return await asyncio.to_thread(_first_file, found[0], max_bytes)

    def _release(self) -> None:
        stdin, self._stdin = self._stdin, None
        if stdin is not None:
            stdin.close()


def _stat(api: Any, name: str, path: str) -> Mapping[str, Any]:
    """What Docker knows of a path without packing it, which the SDK has no call for."""
    response = api.head(
        api._url("/containers/{0}/archive", name), params={"path": path}, timeout=api.timeout
    )
    api._raise_for_status(response)
    return json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))


def _first_file(stream: Iterable[bytes], max_bytes: int) -> bytes:
    data = bytearray()
    for part in stream:
        data += part[: max_bytes + 16_384]
        if len(data) > max_bytes + 16_384:
            break
    try:
        with tarfile.open(fileobj=io.BytesIO(bytes(data)), mode="r|") as tar:
            member = tar.next()
            file = tar.extractfile(member) if member is not None and member.isreg() else None
            return b"" if file is None else file.read(max_bytes)
    except tarfile.TarError:
        return b""


def _actions(events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for event in events:
        found.setdefault(str(event["Action"]), []).append(event["timeNano"] / 1e9)
    return found


def _seconds(text: str) -> float:
    """A time stamp of Docker (RFC 3339 with nanoseconds) in seconds since 1970."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
