"""Who plays attempts: one factory per kind of sandbox, in this process or as an ordinary user."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arise.aio import EventLoopThread
from arise.environments.base import Environment, ExecResult
from arise.environments.verifier import verify
from arise.types import EnvironmentSpec, Task
from integration.sandboxes import IMAGE, factory_of
from security.as_user import UserProcess

REWARD = "/logs/verifier/reward.txt"
UNSOLVED = f"[[ -e /app/solved ]] && echo 1 > {REWARD} || echo 0 > {REWARD}"
# Everybody may write there, as in the images of real tasks.
DOCKERFILE = f"FROM {IMAGE}\nRUN mkdir -p /app && chmod 1777 /app\nWORKDIR /app\n"


class Player:
    """Plays attempts in sandboxes of one kind.

    Args:
        kind: `bubblewrap`, `docker` (the agent is root) or `docker-user`.
        folder: For its tasks; an ordinary user can read it.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._factory: Any = factory_of(
            kind.partition("-")[0], storage_mb=32, max_output_bytes=50_000
        )
        self._loop = EventLoopThread()
        self._shared: Environment | None = None

    def exec(self, command: str, timeout_s: float = 20) -> ExecResult:
        """Run a command in a sandbox that several attempts share, because none is graded."""
        return self._loop.run(self._get_shared().exec(command, timeout_s=timeout_s))

    def fetch(self, source: str) -> dict[str, str]:
        """Copy artifacts of the shared sandbox to the host; the files' texts by path."""
        target = Path(tempfile.mkdtemp(dir=self._folder)) / "artifacts"
        self._loop.run(self._get_shared().download(source, target, max_bytes=100_000))
        return {
            path.relative_to(target).as_posix(): path.read_text() if path.is_file() else "?"
            for path in target.rglob("*")
            if not path.is_dir() or path.is_symlink()
        }

    def episode(
        self,
        commands: Sequence[str],
        test: str = UNSOLVED,
        timeout_s: float = 20,
        *,
        graded: bool = True,
    ) -> tuple[list[str], float]:
        """Outputs of the commands in a sandbox of their own, and the reward afterwards."""
        return self._loop.run(self._episode(commands, test, timeout_s, graded))

    def close(self) -> None:
        """Remove everything."""
        if self._shared is not None:
            self._loop.run(self._shared.stop())
        self._loop.close()
        self._factory.close()

    async def _episode(
        self, commands: Sequence[str], test: str, timeout_s: float, graded: bool
    ) -> tuple[list[str], float]:
        task = self._task(test)
        environment = self._factory.create(task, name="toy")
        try:
            await environment.start()
            outputs = [
                (await environment.exec(text, timeout_s=timeout_s)).output for text in commands
            ]
            return outputs, await verify(environment, task) if graded else 0.0
        finally:
            await environment.stop()

    def _get_shared(self) -> Environment:
        if self._shared is None:
            shared = self._factory.create(self._task(UNSOLVED), name="toy")
            self._loop.run(shared.start())
            self._shared = shared
        return self._shared

    def _task(self, test: str) -> Task:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        folder.chmod(0o755)
        tests, context = folder / "tests", folder / "context"
        tests.mkdir()
        (tests / "test.sh").write_text(f"#!/bin/bash\n{test}\n")
        spec = EnvironmentSpec(storage_mb=32, memory_mb=256)
        if self._kind.startswith("docker"):
            context.mkdir()
            (context / "Dockerfile").write_text(DOCKERFILE)
            user = "nobody" if self._kind == "docker-user" else None
            spec = replace(spec, context=context, user=user)
        return Task(id="toy", instruction="", path=folder, tests=tests, environment=spec)


class UserPlayer:
    """A `Player` for bubblewrap in a child process that gave up root for good."""

    def __init__(self, folder: Path) -> None:
        own = folder / "user"
        own.mkdir(mode=0o777)
        own.chmod(0o777)
        self._process = UserProcess(lambda: Player("bubblewrap", own))

    def exec(self, command: str, timeout_s: float = 20) -> ExecResult:
        """See `Player`."""
        return self._process.call("exec", command, timeout_s)

    def fetch(self, source: str) -> dict[str, str]:
        """See `Player`."""
        return self._process.call("fetch", source)

    def episode(
        self,
        commands: Sequence[str],
        test: str = UNSOLVED,
        timeout_s: float = 20,
        *,
        graded: bool = True,
    ) -> tuple[list[str], float]:
        """See `Player`."""
        return self._process.call("episode", commands, test, timeout_s, graded=graded)

    def close(self) -> None:
        """See `Player`."""
        self._process.call("close")
        self._process.close()
