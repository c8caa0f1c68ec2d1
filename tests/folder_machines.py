"""Machines for tests of what drives machines: folders and bash, without isolation."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from arise.environments.base import Environment, ExecResult
from arise.errors import SandboxError
from arise.types import Task


class FolderMachine:
    """A machine that is an ordinary folder and bash: no isolation, but real processes and tests.

    Its commands may be slow by chance, which is what lockstep has to cope with.
    """

    def __init__(self, factory: FolderMachines, task: Task) -> None:
        self._factory = factory
        self._task = task
        self._folder: Path | None = None

    async def start(self) -> None:
        await self._be_slow()
        self._folder = Path(tempfile.mkdtemp(dir=self._factory.folder))
        await self._factory.note_start()

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        await self._be_slow()
        if command == "die":
            raise SandboxError("the machine died")
        if command == "bug":
            raise ValueError("a bug in the sandbox code")
        code, output = await self._bash(["-c", command], timeout_s=timeout_s)
        return ExecResult(exit_code=code, output=output)

    async def grade(
        self, tests: Path, *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        assert self._folder is not None
        await self._be_slow()
        await self._bash([str(tests / "test.sh")], timeout_s=timeout_s)
        reward = self._folder / "reward.txt"
        return {
            "reward.json": None,
            "reward.txt": reward.read_bytes() if reward.exists() else None,
            "output": b"",
        }

    async def stop(self) -> None:
        self._factory.num_stopped += 1
        if self._folder is not None:
            shutil.rmtree(self._folder)
        if self._factory.fails_to_stop:
            raise SandboxError("cannot be removed")

    async def _bash(self, arguments: list[str], *, timeout_s: float) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            "bash",
            *arguments,
            cwd=self._folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return process.returncode, output.decode()

    async def _be_slow(self) -> None:
        await asyncio.sleep(self._factory.latency())


class FolderMachines:
    """Makes folder machines."""

    def __init__(self, folder: Path, *, latency: Callable[[], float] = lambda: 0.0) -> None:
        folder.mkdir()
        self.folder = folder
        self.latency = latency
        self.num_created = self.num_stopped = self.most_at_once = 0
        self.fails_to_stop = False
        self._changed = asyncio.Condition()

    def check(self) -> None:
        pass

    def unsupported(self, task: Task) -> str | None:
        return None

    def create(self, task: Task, *, name: str) -> Environment:
        if task.environment.docker_image == "absent":
            raise SandboxError("no such image")
        self.num_created += 1
        return FolderMachine(self, task)

    def close(self) -> None:
        pass

    async def note_start(self) -> None:
        self.most_at_once = max(self.most_at_once, self.num_left)
        async with self._changed:
            self._changed.notify_all()

    async def have_started(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.most_at_once >= count)

    @property
    def num_left(self) -> int:
        return len(os.listdir(self.folder))
