"""What the tests of sandboxes share: both kinds, each with settings for tests."""

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from arise.environments.base import Environment
from arise.environments.bubblewrap import BubblewrapEnvironment, BubblewrapFactory
from arise.environments.docker import DockerFactory
from arise.types import EnvironmentSpec, Task

SETTINGS = {
    "sandbox_uid": 64_000,
    "storage_mb": 64,
    "memory_mb": 256,
    "max_processes": 48,
    "max_output_bytes": 20_000,
    "start_timeout_s": 20.0,
}
DOCKER_SETTINGS = {
    "hosts": [],
    "cpus": None,
    "memory_mb": 256,
    "storage_mb": 64,
    "max_processes": 48,
    "max_output_bytes": 20_000,
    "start_timeout_s": 60.0,
    "start_concurrency": 4,
    "call_timeout_s": 60.0,
    "network": "bridge",
    "network_by_default": False,
    "build_network": "none",
    "pull": False,
    "grading": "task",
    "disk_check_interval_s": 1.0,
}
IMAGE = os.environ.get("ARISE_TEST_IMAGE", "arise-base:bookworm")
REWARD = "/logs/verifier/reward.txt"
KINDS = ["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)]


@functools.cache
def docker_problem() -> str:
    """Why tests with Docker cannot run here; empty if they can."""
    import docker

    try:
        client = docker.from_env(timeout=10)
        try:
            client.ping()
            client.images.get(IMAGE)
        finally:
            client.close()
    except Exception as error:
        return f"no Docker daemon with the image {IMAGE} (tools/ci_docker.sh makes both): {error}"
    return ""


def need_docker() -> None:
    """Skip the test, with the reason, where Docker is missing."""
    if docker_problem():
        pytest.skip(docker_problem())


def make_factory(**changes: object) -> BubblewrapFactory:
    return BubblewrapFactory(**{**SETTINGS, **changes})


def make_docker_factory(**changes: object) -> DockerFactory:
    need_docker()
    return DockerFactory(**{**DOCKER_SETTINGS, **changes})


def factory_of(kind: str, **changes: object) -> Any:
    """A factory of one kind; settings that it does not know are left out."""
    make, known = {
        "bubblewrap": (make_factory, SETTINGS),
        "docker": (make_docker_factory, DOCKER_SETTINGS),
    }[kind]
    return make(**{key: value for key, value in changes.items() if key in known})


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


def task_for(kind: str, tmp_path: Path, test: str = f"echo 1 > {REWARD}", **spec: object) -> Task:
    """A task that starts in /app with the files of `tmp_path/context`, if there are any."""
    context = tmp_path / "context"
    if context.is_dir():
        if not (context / "Dockerfile").is_file():
            (context / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\nCOPY . .\n")
        spec.setdefault("context", context)
    elif kind == "docker":
        spec = {"docker_image": IMAGE, "workdir": "/app", **spec}
    return make_task(tmp_path, test, **spec)


def in_sandbox(
    body: Callable[[BubblewrapEnvironment], Awaitable[None]],
    task: Task,
    **changes: object,
) -> None:
    """Run `body` with a started bubblewrap sandbox, and check that nothing of it is left."""
    in_environment("bubblewrap", body, task, **changes)


def own_children() -> set[psutil.Process]:
    """This process's children; a browser or a server of the test session may be among them."""
    return set(psutil.Process().children())


def in_environment(
    kind: str, body: Callable[[Any], Awaitable[None]], task: Task, **changes: object
) -> None:
    """Run `body` with a started sandbox, and check that nothing of it is left."""
    factory = factory_of(kind, **changes)

    async def run() -> None:
        environment = factory.create(task, name="toy")
        try:
            await environment.start()
            await body(environment)
        finally:
            await environment.stop()
            await environment.stop()

    before, others = num_open_files(), own_children()
    try:
        asyncio.run(run())
        if kind == "docker":
            assert containers_of(factory.run_id, templates=False) == []
    finally:
        factory.close()
        factory.close()
    assert own_children() <= others
    if kind == "docker":
        assert containers_of(factory.run_id) == []
        return
    assert num_open_files() <= before


def containers_of(run_id: str, *, templates: bool = True) -> list[str]:
    """Names of a run's containers, those of images that never run included if asked for."""
    import docker

    client = docker.from_env()
    try:
        found = client.api.containers(all=True, filters={"label": f"arise.run={run_id}"})
    finally:
        client.close()
    names = [container["Names"][0] for container in found]
    return [name for name in names if templates or not name.endswith("-image")]


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def wait_for(condition: Callable[[], bool], patience_s: float = 10.0) -> bool:
    """Whether `condition` comes true in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


async def shell(environment: Environment, command: str, timeout_s: float = 20.0) -> str:
    result = await environment.exec(command, timeout_s=timeout_s)
    assert not result.timed_out
    return result.output


@contextmanager
def built(tmp_path: Path, dockerfile: str, **files: str) -> Iterator[Task]:
    """A task with a Dockerfile of its own."""
    context = tmp_path / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\n{dockerfile}\n")
    for name, text in files.items():
        (context / name).write_text(text)
    yield task_for("docker", tmp_path)
