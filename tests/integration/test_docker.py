"""What only Docker sandboxes have: images, limits in the daemon, labels, reaping, several hosts."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arise.environments.auto import AutoFactory
from arise.environments.docker import DockerEnvironment
from arise.environments.docker.labels import OWNER_LABEL, Owner
from arise.environments.verifier import verify
from arise.errors import ConfigError, SandboxError, VerifierError
from arise.types import EnvironmentSpec, Task
from integration.sandboxes import (
    DOCKER_SETTINGS,
    IMAGE,
    REWARD,
    containers_of,
    in_environment,
    make_docker_factory,
    need_docker,
    shell,
    task_for,
    wait_for,
)
from integration.tcp import TcpProxy

pytestmark = pytest.mark.docker
SOCKET = "/var/run/docker.sock"


@pytest.fixture
def api() -> Iterator[Any]:
    need_docker()
    import docker

    client = docker.from_env()
    yield client.api
    client.close()


@contextmanager
def built(tmp_path: Path, dockerfile: str, **files: str) -> Iterator[Task]:
    """A task with a Dockerfile of its own."""
    context = tmp_path / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\n{dockerfile}\n")
    for name, text in files.items():
        (context / name).write_text(text)
    yield task_for("docker", tmp_path)


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


def test_containers_are_spread_over_hosts(tmp_path: Path) -> None:
    need_docker()
    with TcpProxy(SOCKET) as proxy:
        factory = make_docker_factory(hosts=[f"unix://{SOCKET}", proxy.url])
        task = task_for("docker", tmp_path)

        async def run() -> list[str]:
            environments = [factory.create(task, name=str(index)) for index in range(4)]
            try:
                await asyncio.gather(*(environment.start() for environment in environments))
                for environment in environments:
                    assert await shell(environment, "echo works") == "works\n"
                    assert await verify(environment, task) == 1.0
                return [str(environment._container.host) for environment in environments]
            finally:
                for environment in environments:
                    await environment.stop()

        try:
            assert sorted(asyncio.run(run())) == 2 * [proxy.url] + 2 * [f"unix://{SOCKET}"]
        finally:
            factory.close()
        assert containers_of(factory.run_id) == []


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


@contextmanager
def ssh_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real sshd on the loopback, and an ssh client that knows the key; gives the host's url."""
    sshd, ssh = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"), shutil.which("ssh")
    if sshd is None or ssh is None or os.geteuid() != 0:
        pytest.skip("needs root, and sshd and ssh (tools/ci_docker.sh installs them)")
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = (
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPermitRootLogin yes\n"
        "PasswordAuthentication no\nPidFile none\n"
    )
    (folder / "sshd.conf").write_text(settings)
    client = folder / "bin" / "ssh"
    client.parent.mkdir()
    client.write_text(
        f"#!/bin/sh\nexec {ssh} -F none -i {folder}/user -o StrictHostKeyChecking=no "
        f'-o UserKnownHostsFile={folder}/known "$@"\n'
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-f", folder / "sshd.conf"], stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: _answers(port))
        yield f"ssh://root@127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_host_behind_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_docker()
    with ssh_server(tmp_path, monkeypatch) as url:
        factory = make_docker_factory(hosts=[url])
        task = task_for("docker", tmp_path)

        async def run() -> float:
            environment = factory.create(task, name="toy")
            try:
                await environment.start()
                assert await shell(environment, "yes | head -c 1000 | wc -c") == "1000\n"
                return await verify(environment, task)
            finally:
                await environment.stop()

        try:
            factory.check()
            assert asyncio.run(run()) == 1.0
        finally:
            factory.close()
        assert containers_of(factory.run_id) == []
        with pytest.raises(ConfigError, match=r"ssh does not get through to ssh://nobody@"):
            make_docker_factory(hosts=[url.replace("root@", "nobody@")]).check()
    assert not list(Path(tempfile.gettempdir()).glob("arise-ssh-*"))
