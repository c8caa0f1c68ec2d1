"""Milliseconds per phase of episodes in sandboxes, many at once, and what they leave behind.

Usage: python benchmarks/environments.py [--kind bubblewrap|docker] [--image NAME]
           [--episodes 64] [--commands 10]

Prints for each phase the wall-clock p50 and p95 with all episodes in that phase at once, and the
phase's share of the wall clock per unit of work. At the end it counts the processes, containers,
mounts and folders that were not there before. The project's own figures: 256 bubblewrap episodes
and 32 Docker containers, 10 commands each.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from arise.environments.base import Environment
from arise.environments.verifier import verify
from arise.errors import ConfigError
from arise.types import EnvironmentSpec, Task

Work = Callable[[Any], Awaitable[object]]


def make_factory(kind: str, max_processes: int) -> Any:
    common = {"max_processes": max_processes, "max_output_bytes": 20_000, "start_timeout_s": 300.0}
    if kind == "bubblewrap":
        from arise.environments.bubblewrap import BubblewrapFactory

        return BubblewrapFactory(sandbox_uid=64_000, storage_mb=256, memory_mb=1024, **common)
    from arise.environments.docker import DockerFactory

    return DockerFactory(
        hosts=[],
        cpus=None,
        memory_mb=256,
        storage_mb=256,
        start_concurrency=8,
        call_timeout_s=300.0,
        network=None,
        build_network="none",
        pull=False,
        grading="shared",
        disk_check_interval_s=30.0,
        **common,
    )


def leftovers(factory: Any) -> dict[str, int]:
    """What sandboxes could leave: processes, mounts, folders for temporary files, containers."""
    counts = {
        "processes": len(psutil.Process().children(recursive=True)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "folders": len(list(Path(tempfile.gettempdir()).glob("arise-*"))),
    }
    if hasattr(factory, "run_id"):
        import docker

        client = docker.from_env()
        label = {"label": f"arise.run={factory.run_id}"}
        counts["containers"] = len(client.api.containers(all=True, filters=label))
        client.close()
    return counts


async def phase(
    environments: Sequence[Environment], work: Work, repeats: int = 1
) -> tuple[list[float], float]:
    """Wall-clock milliseconds of each unit of work, and the share of one."""

    async def timed(environment: Environment) -> list[float]:
        durations = []
        for _ in range(repeats):
            begin = time.perf_counter()
            await work(environment)
            durations.append(1e3 * (time.perf_counter() - begin))
        return durations

    begin = time.perf_counter()
    parts = await asyncio.gather(*map(timed, environments))
    durations = [duration for part in parts for duration in part]
    return durations, 1e3 * (time.perf_counter() - begin) / len(durations)


def show(name: str, durations: Sequence[float], share: float) -> None:
    quantiles = statistics.quantiles(durations, n=20)
    print(
        f"{name:6s} p50 {quantiles[9]:9.1f} ms   p95 {quantiles[18]:9.1f} ms   "
        f"share {share:8.2f} ms",
        flush=True,
    )


async def run(factory: Any, task: Task, num: int, num_commands: int) -> None:
    environments = [factory.create(task, name=str(index)) for index in range(num)]

    async def command(environment: Environment) -> None:
        result = await environment.exec("echo x > f; cat f", timeout_s=300)
        if (result.exit_code, result.output) != (0, "x\n"):
            raise RuntimeError(f"a command failed: {result}")

    async def grade(environment: Environment) -> None:
        if await verify(environment, task) != 1.0:
            raise RuntimeError("a reward was not 1")

    try:
        for name, work, repeats in (
            ("start", lambda e: e.start(), 1),
            ("exec", command, num_commands),
            ("grade", grade, 1),
            ("stop", lambda e: e.stop(), 1),
        ):
            show(name, *await phase(environments, work, repeats))
    finally:
        await asyncio.gather(*(environment.stop() for environment in environments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("bubblewrap", "docker"), default="bubblewrap")
    parser.add_argument("--image", default="arise-base:bookworm", help="for Docker")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--commands", type=int, default=10)
    arguments = parser.parse_args()
    factory = make_factory(arguments.kind, 128)
    before = leftovers(factory)
    begin = time.perf_counter()
    try:
        factory.check()
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            (Path(folder) / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
            spec = EnvironmentSpec()
            if arguments.kind == "docker":
                spec = EnvironmentSpec(docker_image=arguments.image, workdir="/app")
            task = Task(
                id="benchmark",
                instruction="",
                path=Path(folder),
                tests=Path(folder),
                environment=spec,
            )
            asyncio.run(run(factory, task, arguments.episodes, arguments.commands))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    finally:
        factory.close()
    duration = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{arguments.episodes} episodes in {duration:.1f} s, {peak:.0f} MiB in this process")
    left = {name: count - before[name] for name, count in leftovers(factory).items()}
    print("left behind: " + ", ".join(f"{count} {name}" for name, count in left.items()))


if __name__ == "__main__":
    main()
