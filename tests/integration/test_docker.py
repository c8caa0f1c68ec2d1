"""What only Docker sandboxes have: limits in the daemon, labels, death from outside, users."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arise.environments.auto import AutoFactory
from arise.environments.docker import DockerEnvironment
from arise.environments.docker.labels import OWNER_LABEL, Owner
from arise.environments.verifier import verify
from arise.errors import ConfigError, SandboxError, VerifierError
from arise.types import EnvironmentSpec
from integration.sandboxes import (
    IMAGE,
    REWARD,
    built,
    containers_of,
    in_environment,
    make_docker_factory,
    shell,
    task_for,
)

pytestmark = pytest.mark.docker


def test_C05_limits_and_labels_reach_the_daemon(tmp_path: Path, api: Any) -> None:
    task = task_for("docker", tmp_path, memory_mb=300, cpus=1, env={"A": "1"})

    async def body(environment: DockerEnvironment) -> None:
        found = api.inspect_container(environment.container_name)
        host, config = found["HostConfig"], found["Config"]
        assert (host["Memory"], host["MemorySwap"]) == (314_572_800, 314_572_800)
        assert host["NanoCpus"] == 1_000_000_000
        assert (host["PidsLimit"], host["NetworkMode"], host["Init"]) == (48, "none", True)
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert not host["Binds"]
        assert not host["Privileged"]
        assert config["Labels"]["arise.task"] == "toy"
        assert config["Labels"]["arise.trajectory"] == "toy"
        assert Owner.parse(config["Labels"][OWNER_LABEL]) == Owner.current()
        assert await shell(environment, "tty; cat /proc/1/environ | tr '\\0' '\\n' | grep ^A=") == (
            "not a tty\nA=1\n"
        )

    in_environment("docker", body, task)


def test_tasks_that_no_container_here_can_run(tmp_path: Path) -> None:
    factory = make_docker_factory(network=None)
    task = task_for("docker", tmp_path)
    assert factory.unsupported(task) is None
    for spec, reason in (
        (EnvironmentSpec(docker_image=IMAGE, gpus=2), "asks for GPUs (gpus = 2)"),
        (EnvironmentSpec(docker_image=IMAGE, network=True), "environment.network is null"),
        (EnvironmentSpec(), "neither environment/Dockerfile nor"),
        (EnvironmentSpec(docker_image=IMAGE, unsupported="asks for tpu"), "asks for tpu"),
    ):
        assert reason in str(factory.unsupported(replace(task, environment=spec)))
    (tmp_path / "docker-compose.yaml").write_text("services: {}")
    spec = EnvironmentSpec(context=tmp_path)
    assert "docker-compose" in str(factory.unsupported(replace(task, environment=spec)))
    factory.close()


def test_no_daemon_is_a_clear_error_and_auto_says_so(tmp_path: Path) -> None:
    factory = make_docker_factory(hosts=[f"unix://{tmp_path}/absent.sock"])
    with pytest.raises(
        ConfigError, match=r"no Docker daemon answers at unix://.*environment\.hosts"
    ):
        factory.check()
    with pytest.raises(ConfigError, match=r"no kind of sandbox works.*\n- docker: .*no Docker"):
        AutoFactory(candidates={"docker": factory}).check()
    factory.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [("memory_mb", 0), ("max_processes", 1), ("grading", "else"), ("hosts", ["somewhere"])],
)
def test_settings_out_of_range_name_the_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.{key}"):
        make_docker_factory(**{key: value})


def test_X13_container_killed_from_outside_is_an_infrastructure_error(
    tmp_path: Path, api: Any
) -> None:
    async def body(environment: DockerEnvironment) -> None:
        running = asyncio.create_task(environment.exec("sleep 100", timeout_s=60))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(api.kill, environment.container_name)
        begin = time.monotonic()
        with pytest.raises(SandboxError, match="killed from outside"):
            await running
        assert time.monotonic() - begin < 8
        with pytest.raises(SandboxError):
            await environment.exec("true", timeout_s=5)
        with pytest.raises(SandboxError, match="killed from outside"):
            await environment.grade(tmp_path / "tests", env={}, timeout_s=5)
        found = await asyncio.to_thread(api.inspect_container, environment.container_name)
        assert not found["State"]["Running"]

    in_environment("docker", body, task_for("docker", tmp_path))


def test_disk_of_many_files_is_watched(tmp_path: Path) -> None:
    async def body(environment: DockerEnvironment) -> None:
        command = "for i in 1 2 3 4; do head -c 30000000 /dev/zero > f$i; done; sleep 300"
        result = await environment.exec(command, timeout_s=240)
        if environment._container.host.has_disk_quota:
            assert "No space left" in result.output
        else:
            assert result.exit_code == 137
            assert "[over the disk limit of 64 MiB]" in result.output
        assert (await shell(environment, "rm -f f*; echo alive")).endswith("alive\n")

    in_environment("docker", body, task_for("docker", tmp_path))


def test_disk_is_watched_though_the_first_looks_came_before_the_start(tmp_path: Path) -> None:
    async def body(environment: DockerEnvironment) -> None:
        command = "for i in 1 2 3 4; do head -c 30000000 /dev/zero > f$i; done; sleep 300"
        result = await environment.exec(command, timeout_s=240)
        assert "No space left" in result.output or result.exit_code == 137

    in_environment("docker", body, task_for("docker", tmp_path), disk_check_interval_s=0.1)


def test_grading_in_a_second_container_gets_the_artifacts_only(tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "given").write_text("x")
    test = (
        f"ls /app /logs/artifacts /root; which python3; "
        f"[[ -e /app/done && ! -e /app/given && ! -e /root/left && -e /logs/artifacts/a && "
        f"-e /srv/named/n ]] && python3 -c 'print(1)' > {REWARD}"
    )
    task = replace(task_for("docker", tmp_path, test), is_graded_apart=True)
    task = replace(task, artifacts=("/srv/named",))

    async def body(environment: DockerEnvironment) -> None:
        command = (
            "rm given; touch done /root/left /logs/artifacts/a; mkdir /srv/named; "
            "touch /srv/named/n; printf '#!/bin/sh\\necho 0' > /usr/bin/python3"
        )
        await shell(environment, command)
        assert await verify(environment, task) == 1.0

    in_environment("docker", body, task)


def test_agent_and_tests_have_the_users_that_the_task_names(tmp_path: Path) -> None:
    test = f"[[ $(id -u) == 0 && $(stat -c %u /app/f) == 65534 ]] && echo 1 > {REWARD}"
    with built(tmp_path, "RUN mkdir /app && chown nobody /app\nWORKDIR /app") as task:
        (task.tests / "test.sh").write_text(test)
        spec = replace(task.environment, user="nobody")
        task = replace(task, environment=spec, verifier_user="root")

    async def body(environment: DockerEnvironment) -> None:
        assert await shell(environment, "id -un; touch f; touch /x 2>/dev/null || echo no") == (
            "nobody\nno\n"
        )
        assert await verify(environment, task) == 1.0

    in_environment("docker", body, task)


def test_X11_forty_at_once_need_no_network_each(tmp_path: Path, api: Any) -> None:
    factory = make_docker_factory()
    task = task_for("docker", tmp_path)
    before = len(api.networks())

    async def episode(index: int) -> str:
        environment = factory.create(task, name=str(index))
        try:
            await environment.start()
            return await shell(environment, f"echo {index} > f; cat f", 60)
        finally:
            await environment.stop()

    async def run() -> list[str]:
        return await asyncio.gather(*(episode(index) for index in range(40)))

    try:
        assert asyncio.run(run()) == [f"{index}\n" for index in range(40)]
        assert len(api.networks()) == before
        assert containers_of(factory.run_id) == []
    finally:
        factory.close()


def test_V01_grading_after_the_tests_own_timeout_is_possible_again(tmp_path: Path) -> None:
    task = task_for("docker", tmp_path, f"sleep 30; echo 1 > {REWARD}", verifier_timeout_s=0.5)

    async def body(environment: DockerEnvironment) -> None:
        with pytest.raises(VerifierError):
            await verify(environment, task)
        (task.tests / "fast").mkdir()
        (task.tests / "fast" / "test.sh").write_text(f"echo 1 > {REWARD}")
        files = await environment.grade(task.tests / "fast", env={}, timeout_s=20)
        assert files["reward.txt"] == b"1\n"

    in_environment("docker", body, task)


@pytest.mark.parametrize(("grading", "default"), [("shared", False), ("separate", True)])
def test_agent_and_tests_have_the_networks_that_the_task_names(
    tmp_path: Path, grading: str, default: bool, api: Any
) -> None:
    """By default none; the agent's own, then that of the tests, then the agent's again."""
    if not any(network["Name"] == "bridge" for network in api.networks()):
        pytest.skip("this Docker daemon has no bridge")
    test = f"[[ -e /sys/class/net/eth0 ]] && echo 1 > {REWARD} || echo 0 > {REWARD}"
    task = task_for("docker", tmp_path, test, **({} if default else {"network": False}))
    with_network = replace(task.environment, tests_network=not default)
    task = replace(task, environment=with_network)
    networks = {False: "lo\n", True: "eth0\nlo\n"}

    async def body(environment: DockerEnvironment) -> None:
        assert await shell(environment, "ls /sys/class/net") == networks[default]
        assert await verify(environment, task) == float(not default)
        await environment.resume()
        assert await shell(environment, "ls /sys/class/net") == networks[default]

    in_environment("docker", body, task, grading=grading, network_by_default=default)


def test_default_network_needs_a_network() -> None:
    with pytest.raises(ConfigError, match=r"environment\.network_by_default = true needs"):
        make_docker_factory(network=None, network_by_default=True)
