"""Images of tasks: by name, or built from the task's folder and cached by content."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from arise.environments.docker.hosts import DockerHost, DockerHosts, is_missing
from arise.environments.docker.wire import Wire
from arise.environments.staging import write_context
from arise.errors import SandboxError
from arise.types import EnvironmentSpec

BUILT_REPOSITORY = "arise-task"
_TAIL_CHARACTERS = 2000
_SPOOL_BYTES = 16 << 20


def content_tag(context: Path, *, dockerfile: str, exclude: Iterable[str]) -> str:
    """The image name of a build context: equal contexts have equal names on every machine.

    Raises:
        SandboxError: A file cannot be read.
    """
    digest = hashlib.sha256(f"v1 {dockerfile}\0".encode())
    for path in context_files(context, exclude):
        status = path.lstat()
        name = path.relative_to(context).as_posix()
        kind, content = "f", b""
        if stat.S_ISLNK(status.st_mode):
            kind, content = "l", str(path.readlink()).encode(errors="surrogateescape")
        elif stat.S_ISDIR(status.st_mode):
            kind = "d"
        else:
            content = path.read_bytes()
        mode = stat.S_IMODE(status.st_mode) & 0o111
        digest.update(f"{kind} {mode:o} {len(name)} {name} {len(content)}\0".encode())
        digest.update(content)
    return f"{BUILT_REPOSITORY}:{digest.hexdigest()[:32]}"


def context_files(context: Path, exclude: Iterable[str]) -> list[Path]:
    """Everything below `context`, sorted, but for its own entries named in `exclude`."""
    left_out = set(exclude)
    return [
        path
        for path in sorted(context.rglob("*"))
        if path.relative_to(context).parts[0] not in left_out
    ]


class ImageStore:
    """Finds, pulls and builds images, each once per host.

    Args:
        hosts: Where.
        pull: Whether an image that is absent is pulled from its registry.
        build_network: Docker network of builds.
    """

    def __init__(self, hosts: DockerHosts, *, pull: bool, build_network: str) -> None:
        self._hosts = hosts
        self._pull = pull
        self._build_network = build_network

    async def image_of(self, host: DockerHost, spec: EnvironmentSpec) -> str:
        """The id of the task's image on `host`.

        Raises:
            SandboxError: It is absent or cannot be built; the reason is remembered, so that each
                further episode of the task fails at once.
        """
        builds = spec.context is not None and (spec.context / spec.dockerfile).is_file()
        if builds and spec.context is not None:
            key = await asyncio.to_thread(
                content_tag, spec.context, dockerfile=spec.dockerfile, exclude=spec.exclude
            )
        elif spec.docker_image:
            key = spec.docker_image
        else:
            raise SandboxError(
                "the task has neither environment/Dockerfile nor environment.docker_image"
            )
        async with host.locks.setdefault(key, asyncio.Lock()):
            if key in host.failures:
                raise SandboxError(host.failures[key])
            if key not in host.images:
                try:
                    host.images[key] = await self._provide(host, key, spec if builds else None)
                except SandboxError as error:
                    host.failures[key] = str(error)
                    raise
            return host.images[key]

    async def _provide(self, host: DockerHost, key: str, built: EnvironmentSpec | None) -> str:
        try:
            return str((await self._hosts.call(host, host.api.inspect_image, key))["Id"])
        except SandboxError as error:
            if not is_missing(error):
                raise
        if built is not None:
            await self._build(host, key, built)
        elif self._pull:
            await self._fetch(host, key)
        else:
            raise SandboxError(
                f"the image {key} is absent on {host}, and environment.pull is false"
            )
        return str((await self._hosts.call(host, host.api.inspect_image, key))["Id"])

    async def _fetch(self, host: DockerHost, name: str) -> None:
        repository, _, tag = name.partition("@")
        if not tag:
            repository, _, tag = name.rpartition(":")
            if not repository or "/" in tag:
                repository, tag = name, "latest"
        try:
            await self._hosts.call(host, host.api.pull, repository, tag=tag)
        except SandboxError as error:
            raise SandboxError(
                f"the image {name} is absent on {host} and could not be pulled: {error}"
            ) from error

    async def _build(self, host: DockerHost, tag: str, spec: EnvironmentSpec) -> None:
        build = _Build(host, tag, spec, network=self._build_network)
        task = asyncio.ensure_future(self._hosts.call(host, build.run))
        try:
            async with asyncio.timeout(spec.build_timeout_s):
                await asyncio.shield(task)
        except TimeoutError:
            build.abort()
            await asyncio.wait([task])
            raise SandboxError(
                f"the image of {spec.context} was not built within "
                f"{spec.build_timeout_s:g} s; the log ends: {build.tail()}"
            ) from None
        except asyncio.CancelledError:
            build.abort()
            await asyncio.wait([task])
            raise


class _Build:
    """One build: its context, its log's end, and a way to stop it."""

    def __init__(self, host: DockerHost, tag: str, spec: EnvironmentSpec, *, network: str) -> None:
        self._host = host
        self._tag = tag
        self._spec = spec
        self._network = network
        self._log = ""
        self._response: Any = None
        self._is_aborted = threading.Event()

    def run(self) -> None:
        """Build; blocks.

        Raises:
            SandboxError: The Dockerfile could not be built.
        """
        assert self._spec.context is not None
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as archive:
            files = context_files(self._spec.context, self._spec.exclude)
            write_context(archive, self._spec.context, files)
            archive.seek(0)
            error = self._stream(archive)
        if self._is_aborted.is_set():
            return
        if error:
            raise SandboxError(
                f"{self._spec.context / self._spec.dockerfile} could not be built: {error}; "
                f"the log ends: {self.tail()}"
            )

    def _stream(self, archive: IO[bytes]) -> str:
        """Send the context and read the log; returns the error, or nothing."""
        api = self._host.api
        response = api._post(
            api._url("/build"),
            data=archive,
            params={
                "t": self._tag,
                "dockerfile": self._spec.dockerfile,
                "rm": True,
                "forcerm": True,
                "networkmode": self._network,
                "labels": json.dumps({"arise.built": str(int(time.time()))}),
            },
            headers={"Content-Type": "application/tar"},
            stream=True,
            timeout=None,
        )
        api._raise_for_status(response)
        self._response = response
        error = ""
        try:
            for line in response.iter_lines():
                if not line or self._is_aborted.is_set():
                    continue
                entry = json.loads(line)
                self._log = (self._log + entry.get("stream", ""))[-2 * _TAIL_CHARACTERS :]
                error = entry.get("error", error)
        except Exception:
            # An aborted build's connection is closed under the reader.
            if not self._is_aborted.is_set():
                raise
        finally:
            response.close()
        return error

    def abort(self) -> None:
        """Stop the build: Docker cancels it when nobody reads its log."""
        self._is_aborted.set()
        response = self._response
        if response is not None:
            # Closing alone would wait for the reader, which waits for the next line.
            Wire(self._host.api._get_raw_response_socket(response)).close()

    def tail(self) -> str:
        """The end of the log."""
        return self._log[-_TAIL_CHARACTERS:].strip() or "(empty)"
