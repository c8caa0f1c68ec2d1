"""Docker hosts: connections, spreading of containers, and calls that do not block the loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from arise.environments.docker.tunnel import SshTunnel
from arise.errors import ConfigError, SandboxError

log = logging.getLogger(__name__)

T = TypeVar("T")

_NUM_THREADS = 32
_SETTLE_S = 60.0
_SCHEMES = ("unix://", "tcp://", "http://", "https://", "ssh://")


@dataclass(slots=True, eq=False)
class DockerHost:
    """One Docker daemon.

    Attributes:
        url: Its address; empty for the one that the environment's variables name.
        api: The SDK's low-level client.
        num_containers: Episodes that it runs now.
        down_since: When it gave no answer, by the monotonic clock; `None` if it did last time.
        has_disk_quota: Whether it can limit a container's disk; `None` until tried.
        images: Image id by content tag or name, of the images that are known to be there.
        failures: Why an image cannot be had, by the same key.
        locks: One lock per image, so that it is built once.
        templates: A container of an image that never runs, by image id: the untouched files.
    """

    url: str
    api: Any
    num_containers: int = 0
    down_since: float | None = None
    has_disk_quota: bool | None = None
    images: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.url or "the default Docker host"


class DockerHosts:
    """All hosts of a run; a container goes where the fewest run.

    Args:
        urls: Addresses (unix, tcp or ssh); empty takes DOCKER_HOST or the local socket.
        timeout_s: Limit on one call, in seconds.
        retry_s: How long a host that gave no answer gets no container, in seconds.

    Raises:
        ConfigError: An address has no known scheme.
    """

    def __init__(self, urls: Sequence[str], *, timeout_s: float, retry_s: float = 30.0) -> None:
        for url in urls:
            if not url.startswith(_SCHEMES):
                raise ConfigError(
                    f"environment.hosts: {url!r} must start with one of {', '.join(_SCHEMES)}"
                )
        self._urls = tuple(urls) or ("",)
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._hosts: list[DockerHost] = []
        self._pool: ThreadPoolExecutor | None = None
        self._tunnels: list[SshTunnel] = []

    def connect(self) -> list[DockerHost]:
        """Connect to every host that is not connected yet, and ask it for an answer.

        Raises:
            ConfigError: The SDK is missing, or hosts do not answer; all of them are named.
        """
        if not self._hosts:
            hosts, problems = [], []
            for url in self._urls:
                try:
                    hosts.append(DockerHost(url, self._client(url)))
                except ConfigError as error:
                    problems.append(str(error))
            if problems:
                raise ConfigError("\n".join(problems))
            self._hosts = hosts
            self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="arise-docker")
        return self._hosts

    def _client(self, url: str) -> Any:
        try:
            import docker
        except ImportError as error:
            raise ConfigError(
                "environment=docker needs the package docker: pip install docker"
            ) from error
        options: dict[str, Any] = {"timeout": self._timeout_s, "max_pool_size": _NUM_THREADS}
        base_url = url
        if url.startswith("ssh://"):
            tunnel = SshTunnel(url, timeout_s=self._timeout_s)
            self._tunnels.append(tunnel)
            base_url = tunnel.url
        try:
            if not url:
                client = docker.from_env(**options)
            else:
                client = docker.DockerClient(base_url=base_url, **options)
            client.ping()
        except Exception as error:  # the SDK lets errors of every layer below it through
            raise ConfigError(
                f"environment=docker: no Docker daemon answers at {url or 'the default address'} "
                f"({_reason(error)}); start one (dockerd), or name others in environment.hosts "
                "or DOCKER_HOST"
            ) from error
        return client.api

    @contextmanager
    def place(self) -> Iterator[DockerHost]:
        """The host for one more container, which it holds until the block ends.

        One that gave no answer is left alone for a while, because a dead host, whose episodes fail
        at once, is always the one with the fewest. Then an episode tries it.

        Raises:
            ConfigError: A host does not answer.
        """
        hosts = self.connect()
        usable = [host for host in hosts if self._is_usable(host)]
        host = min(usable or hosts, key=lambda host: host.num_containers)
        host.num_containers += 1
        try:
            yield host
        finally:
            host.num_containers -= 1

    def _is_usable(self, host: DockerHost) -> bool:
        return host.down_since is None or time.monotonic() - host.down_since > self._retry_s

    def _note(self, host: DockerHost, error: Exception | None) -> None:
        """Remember whether a host answers."""
        if error is None or not _is_silence(error):
            if host.down_since is not None:
                log.warning("the Docker host %s answers again", host)
            host.down_since = None
            return
        if host.down_since is None:
            log.warning("the Docker host %s gives no answer: %s", host, _reason(error))
        host.down_since = time.monotonic()

    async def call(self, host: DockerHost, function: Callable[..., T], *args: Any, **kw: Any) -> T:
        """Run a blocking call of the SDK in a thread.

        A cancelled caller waits until the call is over: what it made can then be removed.

        Raises:
            SandboxError: Docker refused or cannot be reached.
        """
        self.connect()
        work = functools.partial(function, *args, **kw)
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            result = await asyncio.shield(future)
            self._note(host, None)
            return result
        except asyncio.CancelledError:
            await asyncio.wait([future], timeout=_SETTLE_S)
            raise
        except SandboxError:
            raise
        except Exception as error:
            self._note(host, error)
            raise as_sandbox_error(host, error) from error

    def close(self) -> None:
        """Close all connections; safe to repeat."""
        hosts, self._hosts = self._hosts, []
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        for host in hosts:
            host.api.close()
        tunnels, self._tunnels = self._tunnels, []
        for tunnel in tunnels:
            tunnel.close()


def as_sandbox_error(host: DockerHost, error: Exception) -> SandboxError:
    """What Docker said, as the error of the sandbox boundary."""
    return SandboxError(f"Docker ({host}): {_reason(error)}")


def _is_silence(error: BaseException | None) -> bool:
    """Whether no answer came, as against one that refuses."""
    from requests.exceptions import ConnectionError, Timeout

    while error is not None:
        if isinstance(error, ConnectionError | Timeout):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_missing(error: BaseException | None) -> bool:
    """Whether Docker said that the thing does not exist."""
    while error is not None:
        if getattr(getattr(error, "response", None), "status_code", None) == 404:
            return True
        error = error.__cause__
    return False


def _reason(error: BaseException) -> str:
    text = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[-500:]
