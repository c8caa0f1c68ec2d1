"""Milliseconds per phase of bubblewrap episodes, many at once.

Usage: python benchmarks/environments.py [--episodes 64] [--commands 20]

Prints for each phase the wall-clock p50 and p95 with all episodes in that phase at once, the
phase's share of the wall clock per unit of work, and the CPU time per unit. CPU time is that of
this process and of everything in the sandboxes, so other load on the machine does not change it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from arise.environments.bubblewrap import BubblewrapEnvironment, BubblewrapFactory
from arise.environments.verifier import verify
from arise.types import Task

Work = Callable[[BubblewrapEnvironment], Awaitable[object]]


def cpu_ms() -> float:
    """CPU time of this process and of all sandboxes that have ended, but not of their shells.

    The kernel forgets the times of processes that die with their namespace.
    """
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1e3 * sum(usage.ru_utime + usage.ru_stime for usage in usages)


def shell_cpu_ms(environment: BubblewrapEnvironment) -> float:
    """CPU time of a sandbox's shell and of the commands it ran."""
    fields = Path(f"/proc/{environment.session_pid()}/stat").read_text().rsplit(")")[-1].split()
    return 1e3 * sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def phase(
    environments: Sequence[BubblewrapEnvironment], work: Work, repeats: int = 1
) -> list[float]:
    """Wall-clock milliseconds of each unit of work, and at the end the share of one."""

    async def timed(environment: BubblewrapEnvironment) -> list[float]:
        durations = []
        for _ in range(repeats):
            begin = time.perf_counter()
            await work(environment)
            durations.append(1e3 * (time.perf_counter() - begin))
        return durations

    begin = time.perf_counter()
    parts = await asyncio.gather(*map(timed, environments))
    durations = [duration for part in parts for duration in part]
    return [*durations, 1e3 * (time.perf_counter() - begin) / len(durations)]


async def episodes(
    factory: BubblewrapFactory, task: Task, num: int, middle: Work | None, repeats: int = 1
) -> tuple[list[list[float]], float]:
    """Durations of start, middle and stop, and the CPU milliseconds of all."""
    begin = cpu_ms()
    environments = [factory.create(task, name=str(index)) for index in range(num)]
    durations = [await phase(environments, lambda e: e.start())]
    durations.append(await phase(environments, middle, repeats) if middle else [])
    shells = sum(map(shell_cpu_ms, environments)) if repeats > 1 else 0.0
    durations.append(await phase(environments, lambda e: e.stop()))
    return durations, cpu_ms() - begin + shells


def show(name: str, durations: list[float], cpu: float) -> None:
    quantiles = statistics.quantiles(durations[:-1], n=20)
    print(
        f"{name:12s} p50 {quantiles[9]:8.1f} ms   p95 {quantiles[18]:8.1f} ms   "
        f"share {durations[-1]:6.2f} ms   CPU {cpu:6.2f} ms"
    )


async def run(num: int, num_commands: int) -> None:
    factory = BubblewrapFactory(
        sandbox_uid=64_000,
        storage_mb=256,
        memory_mb=1024,
        max_processes=128,
        max_output_bytes=20_000,
        start_timeout_s=60.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
        task = Task(id="benchmark", instruction="", path=Path(folder), tests=Path(folder))
        base, base_cpu = await episodes(factory, task, num, None)
        show("start + stop", base[0], base_cpu / num)
        show("  stop", base[2], 0.0)
        durations, cpu = await episodes(
            factory, task, num, lambda e: e.exec("echo x > f", timeout_s=60), num_commands
        )
        show("exec", durations[1], (cpu - base_cpu) / num / num_commands)
        durations, cpu = await episodes(factory, task, num, lambda e: verify(e, task))
        show("grade", durations[1], (cpu - base_cpu) / num)
    factory.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--commands", type=int, default=20)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.episodes, arguments.commands))


if __name__ == "__main__":
    main()
