"""Images: by name or built, cached by content, and what cannot be had."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arise.environments.docker import DockerEnvironment
from arise.errors import SandboxError
from arise.types import Task
from integration.sandboxes import (
    built,
    containers_of,
    in_environment,
    make_docker_factory,
    shell,
    task_for,
)

pytestmark = pytest.mark.docker


def start_error(task: Task, **changes: object) -> str:
    """What a start of `task` fails with."""

    async def run() -> None:
        factory = make_docker_factory(**changes)
        environment = factory.create(task, name="toy")
        try:
            with pytest.raises(SandboxError) as first:
                await environment.start()
            begin = time.monotonic()
            with pytest.raises(SandboxError) as second:
                await factory.create(task, name="again").start()
            # The reason is remembered, not found again.
            assert time.monotonic() - begin < 0.5
            assert str(second.value) == str(first.value)
            assert containers_of(factory.run_id) == []
            messages.append(str(first.value))
        finally:
            factory.close()

    messages: list[str] = []
    asyncio.run(run())
    return messages[0]


def test_image_is_built_once_per_content(tmp_path: Path, api: Any) -> None:
    mark = f"RUN echo {tmp_path.name}-{os.getpid()} > /built\nWORKDIR /srv\nCOPY f /srv/f"

    async def body(environment: DockerEnvironment) -> None:
        assert await shell(environment, "pwd; cat f") == "/srv\none\n"

    with built(tmp_path, mark, f="one\n") as task:
        before = {image["Id"] for image in api.images(name="arise-task")}
        in_environment("docker", body, task)
        (first,) = {image["Id"] for image in api.images(name="arise-task")} - before
        elsewhere = tmp_path / "elsewhere"
        (tmp_path / "context").rename(elsewhere)
        copied = replace(task.environment, context=elsewhere)
        in_environment("docker", body, replace(task, environment=copied))
        assert {image["Id"] for image in api.images(name="arise-task")} - before == {first}
        api.remove_image(first, force=True)


def test_dockerfile_that_cannot_be_built_shows_its_logs_tail(tmp_path: Path) -> None:
    with built(tmp_path, "RUN echo the reason; exit 3") as task:
        message = start_error(task)
    assert "Dockerfile could not be built" in message
    assert "exit 3' returned a non-zero code: 3" in message
    assert "the reason" in message.split("the log ends:")[1]


def test_C05_build_timeout_ends_the_build(tmp_path: Path) -> None:
    # Not the same twice: an earlier build's layer would be taken instead.
    with built(tmp_path, f"RUN echo slow {time.time_ns()}; sleep 600") as task:
        spec = replace(task.environment, build_timeout_s=2.0)
        begin = time.monotonic()
        message = start_error(replace(task, environment=spec))
    # Far below the build's own ten minutes, however busy the machine is.
    assert time.monotonic() - begin < 300
    assert "not built within 2 s; the log ends:" in message
    assert "slow" in message


def test_absent_image_is_named(tmp_path: Path) -> None:
    task = task_for("docker", tmp_path, docker_image="arise-absent:1")
    assert "the image arise-absent:1 is absent" in start_error(task)
