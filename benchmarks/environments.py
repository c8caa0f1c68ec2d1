"""Milliseconds per phase of episodes in sandboxes, many at once, and what they leave behind.

Usage: python benchmarks/environments.py [bubblewrap] [docker] [--image NAME]
           [--episodes N] [--commands 10]

Both kinds are measured if none is named: 256 bubblewrap episodes and 32 Docker containers, each
with ten commands and a grading, all of them at once. A table gives, for each phase, the wall-clock
p50 and p95 of a single call while all episodes are in that phase, and the wall clock of the whole
phase divided by its calls. Every command's output and every reward is checked.

Below the table stands what the episodes left: processes that were in a sandbox and still run,
containers of this run, mounts and folders of its own. Anything left ends the script with exit code
1, and so does a command that failed. Other users of the machine are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from arise.environments.base import Environment
from arise.environments.verifier import verify
from arise.errors import ConfigError
from arise.types import EnvironmentSpec, Task

Work = Callable[[Any], Awaitable[object]]
EPISODES = {"bubblewrap": 256, "docker": 32}
_TIMEOUT_S = 300.0


def make_factory(kind: str) -> Any:
    common = {
        "max_processes": 64,
        "max_output_bytes": 20_000,
        "start_timeout_s": _TIMEOUT_S,
        "storage_mb": 64,
        "memory_mb": 256,
    }
    if kind == "bubblewrap":
        from arise.environments.bubblewrap import BubblewrapFactory

        return BubblewrapFactory(sandbox_uid=65_534, **common)
    from arise.environments.docker import DockerFactory

    return DockerFactory(
        hosts=[],
        cpus=None,
        start_concurrency=8,
        call_timeout_s=_TIMEOUT_S,
        network=None,
        network_by_default=False,
        build_network="none",
        pull=False,
        grading="shared",
        disk_check_interval_s=30.0,
        **common,
    )


class Leftovers:
    """What the episodes of one factory have on this machine, and what of it outlives them.

    Args:
        factory: Made the sandboxes.
        folder: Where this process makes folders for temporary files.
    """

    def __init__(self, factory: Any, folder: Path) -> None:
        self._folder = folder
        self._run_id = getattr(factory, "run_id", None)
        self._processes: list[psutil.Process] = []
        self._mounts: set[str] = {str(folder)}

    def watch(self) -> int:
        """Remember every process and mount of the sandboxes; returns the number of processes."""
        self._processes = psutil.Process().children(recursive=True)
        for container in self._containers():
            self._mounts.update(filter(None, self._mount_points(container)))
            first = psutil.Process(container["State"]["Pid"])
            self._processes += [first, *first.children(recursive=True)]
        return len(self._processes)

    def count(self) -> dict[str, int]:
        """What is left."""
        mounted = {
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        }
        alive = {
            process.pid
            for process in [*self._processes, *psutil.Process().children(recursive=True)]
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        }
        return {
            "processes": len(alive),
            "containers": len(self._containers()),
            "mounts": sum(
                place == own or place.startswith(f"{own}/")
                for place in mounted
                for own in self._mounts
            ),
            "folders": len(list(self._folder.iterdir())),
        }

    def _containers(self) -> list[dict[str, Any]]:
        if self._run_id is None:
            return []
        import docker

        client = docker.from_env()
        try:
            label = {"label": f"arise.run={self._run_id}"}
            found = client.api.containers(all=True, filters=label)
            return [client.api.inspect_container(container["Id"]) for container in found]
        finally:
            client.close()

    @staticmethod
    def _mount_points(container: dict[str, Any]) -> Iterator[str]:
        yield (container.get("GraphDriver", {}).get("Data") or {}).get("MergedDir", "")
        yield container.get("NetworkSettings", {}).get("SandboxKey", "")


async def phase(
    environments: Sequence[Environment], work: Work, repeats: int = 1
) -> tuple[list[float], float]:
    """Wall-clock milliseconds of each call, and the phase's share of one."""

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


def show(kind: str, name: str, durations: Sequence[float], share: float) -> None:
    quantiles = statistics.quantiles(durations, n=20)
    print(
        f"| {kind} | {name} | {len(durations)} | {quantiles[9]:.1f} | {quantiles[18]:.1f} | "
        f"{share:.2f} |",
        flush=True,
    )


async def run(
    kind: str, factory: Any, task: Task, num: int, num_commands: int, left: Leftovers
) -> int:
    """All phases; returns how many processes the sandboxes had at once."""
    environments = [factory.create(task, name=str(index)) for index in range(num)]
    num_processes = 0

    async def command(environment: Environment) -> None:
        result = await environment.exec("echo x > f; cat f", timeout_s=_TIMEOUT_S)
        if (result.exit_code, result.output) != (0, "x\n"):
            raise RuntimeError(f"a command failed: {result}")

    async def survivor(environment: Environment) -> None:
        await environment.exec("setsid nohup sleep 1000 & sleep 1000 &", timeout_s=_TIMEOUT_S)

    async def grade(environment: Environment) -> None:
        if await verify(environment, task) != 1.0:
            raise RuntimeError("a reward was not 1")

    try:
        show(kind, "start", *await phase(environments, lambda e: e.start()))
        show(kind, "exec", *await phase(environments, command, num_commands))
        await phase(environments, survivor)
        num_processes = await asyncio.to_thread(left.watch)
        show(kind, "grade", *await phase(environments, grade))
        show(kind, "stop", *await phase(environments, lambda e: e.stop()))
    finally:
        await asyncio.gather(*(environment.stop() for environment in environments))
    return num_processes


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that nobody else uses for temporary files; sandboxes' users can read it."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as made:
        os.chmod(made, 0o755)
        before, tempfile.tempdir = tempfile.tempdir, made
        try:
            yield Path(made)
        finally:
            tempfile.tempdir = before


def measure(kind: str, image: str, num: int, num_commands: int) -> bool:
    """One kind of sandbox; returns whether nothing was left behind."""
    begin = time.perf_counter()
    with own_folder() as folder, tempfile.TemporaryDirectory(dir=folder.parent) as task_folder:
        (Path(task_folder) / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
        spec = EnvironmentSpec()
        if kind == "docker":
            spec = EnvironmentSpec(docker_image=image, workdir="/app")
        task = Task(
            id="benchmark",
            instruction="",
            path=Path(task_folder),
            tests=Path(task_folder),
            environment=spec,
        )
        factory = make_factory(kind)
        left = Leftovers(factory, folder)
        try:
            factory.check()
            num_processes = asyncio.run(run(kind, factory, task, num, num_commands, left))
        finally:
            factory.close()
        counts = left.count()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\n{kind}: {num} episodes at once with {num_processes} processes in "
        f"{time.perf_counter() - begin:.1f} s, {peak:.0f} MiB in this process; left behind: "
        + ", ".join(f"{count} {name}" for name, count in counts.items())
        + "\n",
        flush=True,
    )
    return not any(counts.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="bubblewrap, docker (both)")
    parser.add_argument("--image", default="arise-base:bookworm", help="for Docker")
    parser.add_argument("--episodes", type=int, help="256 with bubblewrap, 32 with Docker")
    parser.add_argument("--commands", type=int, default=10)
    arguments = parser.parse_args()
    kinds = arguments.kinds or list(EPISODES)
    if not set(kinds) <= set(EPISODES):
        parser.error(f"KIND must be one of {', '.join(EPISODES)}")
    print("| sandbox | phase | calls | p50 ms | p95 ms | share ms |\n|---|---|---|---|---|---|")
    is_clean = True
    for kind in kinds:
        num = arguments.episodes or EPISODES[kind]
        try:
            is_clean &= measure(kind, arguments.image, num, arguments.commands)
        except ConfigError as error:
            if arguments.kinds:
                sys.exit(f"error: {error}")
            print(f"\n{kind}: not measured: {error}\n")
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
