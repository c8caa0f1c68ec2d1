"""What the tests of sandboxes share."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from arise.environments.bubblewrap import BubblewrapEnvironment, BubblewrapFactory
from arise.types import EnvironmentSpec, Task

SETTINGS = {
    "sandbox_uid": 64_000,
    "storage_mb": 64,
    "memory_mb": 256,
    "max_processes": 48,
    "max_output_bytes": 20_000,
    "start_timeout_s": 20.0,
}
REWARD = "/logs/verifier/reward.txt"


def make_factory(**changes: object) -> BubblewrapFactory:
    return BubblewrapFactory(**{**SETTINGS, **changes})


def make_task(tmp_path: Path, test: str = f"echo 1 > {REWARD}", **spec: object) -> Task:
    (tmp_path / "tests").mkdir(exist_ok=True)
    (tmp_path / "tests" / "test.sh").write_text(test)
    timeout_s = spec.pop("verifier_timeout_s", 20.0)
    return Task(
        id="toy",
        instruction="",
        path=tmp_path,
        tests=tmp_path / "tests",
        environment=EnvironmentSpec(**spec),
        verifier_timeout_s=timeout_s,
    )


def in_sandbox(
    body: Callable[[BubblewrapEnvironment], Awaitable[None]],
    task: Task,
    **changes: object,
) -> None:
    """Run `body` with a started sandbox, and check that nothing of it is left."""

    async def run() -> None:
        factory = make_factory(**changes)
        environment = factory.create(task, name="toy")
        try:
            await environment.start()
            await body(environment)
        finally:
            await environment.stop()
            await environment.stop()
            factory.close()
            factory.close()

    before = num_open_files()
    asyncio.run(run())
    assert psutil.Process().children(recursive=True) == []
    assert num_open_files() == before


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def shell(environment: BubblewrapEnvironment, command: str, timeout_s: float = 20.0) -> str:
    result = await environment.exec(command, timeout_s=timeout_s)
    assert not result.timed_out
    return result.output
