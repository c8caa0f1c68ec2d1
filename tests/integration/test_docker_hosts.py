"""Containers on several Docker hosts: sockets, TCP, and ssh to a real server."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arise.environments.verifier import verify
from arise.errors import ConfigError, SandboxError
from integration.sandboxes import (
    containers_of,
    make_docker_factory,
    need_docker,
    shell,
    task_for,
    wait_for,
)
from integration.tcp import TcpProxy

pytestmark = pytest.mark.docker
SOCKET = "/var/run/docker.sock"


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


def test_a_dead_host_is_noticed_and_gets_no_more_episodes_until_it_answers(tmp_path: Path) -> None:
    """Its episodes fail at once, so it would always be the one with the fewest."""
    need_docker()
    with TcpProxy(SOCKET) as proxy:
        factory = make_docker_factory(hosts=[f"unix://{SOCKET}", proxy.url])
        task = task_for("docker", tmp_path)

        async def hosts_of(count: int) -> list[str]:
            """Where so many episodes, one after the other, were played."""
            played = []
            for index in range(count):
                environment = factory.create(task, name=str(index))
                try:
                    await environment.start()
                    played.append(str(environment._container.host))
                except SandboxError:
                    played.append("lost")
                finally:
                    await environment.stop()
            return played

        async def run() -> None:
            local, remote = factory._hosts.connect()
            local.num_containers = 1
            assert await hosts_of(1) == [proxy.url]
            proxy.cut()
            assert await hosts_of(3) == ["lost", str(local), str(local)]
            assert remote.down_since is not None

        try:
            factory.check()
            assert [name for name, _ in factory.found] == [f"unix://{SOCKET}", proxy.url]
            asyncio.run(run())
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
