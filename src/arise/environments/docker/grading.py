"""Grading of a container: with every agent process dead, in it or in a second one."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arise.environments.docker.container import Container, ContainerLimits
from arise.environments.docker.hosts import DockerHosts
from arise.environments.docker.repair import artifact_roots, repair
from arise.environments.docker.scripts import tests_script
from arise.environments.staging import archive
from arise.errors import SandboxError, VerifierError
from arise.types import Task

_REWARD_FILES = ("reward.json", "reward.txt")
_MAX_REWARD_BYTES = 65_536


class Grader:
    """Runs the tests of one episode.

    Args:
        hosts: Makes calls.
        task: The task.
        container: The agent's container.
        image: Its image.
        workdir: Where commands start.
        options: What the agent's container was created with.
        network: Docker network of the tests.
        is_apart: Grade in a second container that gets the artifacts only: working directory,
            `/logs/artifacts` and what the task names.
        max_output_bytes: Cap of the tests' output.
    """

    def __init__(
        self,
        hosts: DockerHosts,
        task: Task,
        container: Container,
        *,
        image: str,
        workdir: str,
        options: Mapping[str, Any],
        network: str,
        is_apart: bool,
        max_output_bytes: int,
    ) -> None:
        self._hosts = hosts
        self._task = task
        self._container = container
        self._image = image
        self._workdir = workdir
        limits: ContainerLimits = options["limits"]
        self._options = {**options, "limits": replace(limits, network=network)}
        self._network = network
        self._is_apart = is_apart
        self._max_output_bytes = max_output_bytes
        self._second: Container | None = None

    async def grade(
        self, packed: bytes, *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        """Run the tests in `packed`, an archive of `tests/` and of the log folders, made afresh.

        Raises:
            VerifierError: They did not finish in time.
            SandboxError: Docker failed.
        """
        agent = self._container
        await agent.halt()
        graded = await self._make_second() if self._is_apart else agent
        if not self._is_apart:
            await repair(agent, await self._template())
            await agent.use_network(self._network)
        await graded.put("/", packed)
        await graded.start()
        output = await self._run(graded, env, timeout_s)
        # What the tests left running must not write a reward any more either.
        await graded.halt()
        files = {
            name: await graded.read(f"/logs/verifier/{name}", max_bytes=_MAX_REWARD_BYTES + 1)
            for name in _REWARD_FILES
        }
        return {**files, "output": output}

    async def _run(self, graded: Container, env: Mapping[str, str], timeout_s: float) -> bytes:
        stream = await graded.open_stream(
            tests_script(workdir=self._workdir, env=env),
            user=self._task.verifier_user or "",
            env={},
            max_output_bytes=self._max_output_bytes,
        )
        try:
            _, output = await stream.ask(b"", timeout_s=timeout_s)
            return output.raw()
        except TimeoutError:
            tail = stream.take(is_last=True).text()[0][-2000:]
            raise VerifierError(
                f"the tests did not finish within {timeout_s:g} s; output ends: {tail}"
            ) from None
        finally:
            stream.close()

    async def _template(self) -> Container:
        """A container of the image that never runs, one per image and host for the whole run."""
        host = self._container.host
        async with host.locks.setdefault(f"template {self._image}", asyncio.Lock()):
            if self._image not in host.templates:
                made = await self._make(f"{self._container.name}-image")
                host.templates[self._image] = made.name
            return Container(self._hosts, host, name=host.templates[self._image])

    async def _make(self, name: str) -> Container:
        """A further container of the task's image, not started."""
        made = Container(self._hosts, self._container.host, name=name)
        try:
            await made.create(self._image, **self._options)
        except SandboxError:
            await made.remove()
            raise
        return made

    async def _make_second(self) -> Container:
        """A fresh container with the artifacts of the agent's."""
        if self._second is not None:
            await self._second.remove()
        self._second = second = await self._make(f"{self._container.name}-grading")
        for path in artifact_roots(self._workdir, self._task.artifacts):
            found = await self._container.get(path)
            # Also what the agent deleted is not there.
            await second.put("/", archive((), replaced=(path,)))
            if found is not None:
                await second.put(posixpath.dirname(path), found[0])
        return second

    async def close(self) -> None:
        """Remove the second container."""
        second, self._second = self._second, None
        if second is not None:
            await second.remove()
