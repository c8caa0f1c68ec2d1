"""Containers of runs that are interrupted, killed or cancelled."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from integration.sandboxes import (
    DOCKER_SETTINGS,
    IMAGE,
    containers_of,
    make_docker_factory,
    need_docker,
    task_for,
    wait_for,
)

pytestmark = pytest.mark.docker


PROGRAM = f"""
import asyncio, signal, sys, time
from pathlib import Path
from arise.aio import EventLoopThread
from arise.environments.docker import DockerFactory
from arise.types import EnvironmentSpec, Task
spec = EnvironmentSpec(docker_image={IMAGE!r}, workdir="/app")
task = Task(id="a", instruction="", path=Path("/"), tests=Path("/"), environment=spec)
factory = DockerFactory(**{DOCKER_SETTINGS!r})
factory.check()
loop = EventLoopThread()
async def episode(number):
    environment = factory.create(task, name=str(number))
    try:
        await environment.start()
        await environment.exec("setsid sleep 1000 &", timeout_s=9)
        print(factory.run_id, flush=True)
        await environment.exec("sleep 1000", timeout_s=99)
    finally:
        await environment.stop()
async def run():
    await asyncio.gather(*(episode(number) for number in range(3)))
try:
    loop.run(run())
finally:
    loop.close()
    factory.close()
"""


def start_program() -> tuple[subprocess.Popen[bytes], str]:
    """A run with three containers, and its id."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert program.stdout is not None
    lines = [program.stdout.readline().decode().strip() for _ in range(3)]
    assert len(set(lines)) == 1
    assert lines[0]
    assert len(containers_of(lines[0])) == 3
    return program, lines[0]


@pytest.mark.parametrize("num_interrupts", [1, 2])
def test_interrupts_leave_no_container(num_interrupts: int) -> None:
    need_docker()
    program, run_id = start_program()
    for _ in range(num_interrupts):
        program.send_signal(signal.SIGINT)
        time.sleep(0.15)
    program.wait(timeout=40)
    program.stdout.close()
    assert containers_of(run_id) == []


def test_killed_run_stops_at_once_and_is_removed_at_the_next_start(api: Any) -> None:
    program, run_id = start_program()
    program.kill()
    program.wait()
    program.stdout.close()

    def running() -> list[Any]:
        return api.containers(filters={"label": f"arise.run={run_id}"})

    assert wait_for(lambda: not running())
    assert len(containers_of(run_id)) == 3
    others = start_program()
    assert containers_of(run_id) == []
    # A run that lives is left alone.
    factory = make_docker_factory()
    factory.check()
    assert len(containers_of(others[1])) == 3
    factory.close()
    others[0].send_signal(signal.SIGINT)
    others[0].wait(timeout=40)
    others[0].stdout.close()
    assert containers_of(others[1]) == []


def test_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    factory = make_docker_factory()
    task = task_for("docker", tmp_path)

    async def run() -> None:
        for delay_s in (0.0, 0.05, 0.15, 0.3):
            environment = factory.create(task, name="toy")
            starting = asyncio.create_task(environment.start())
            await asyncio.sleep(delay_s)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await environment.stop()

    try:
        asyncio.run(run())
        assert containers_of(factory.run_id) == []
    finally:
        factory.close()
    assert not [t for t in threading.enumerate() if t.name == "arise-docker-io" and t.is_alive()]
