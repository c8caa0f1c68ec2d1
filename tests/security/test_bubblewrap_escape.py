"""An agent that wants more than its sandbox: escapes, forged rewards, and dodged ones."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from arise.environments.bubblewrap import BubblewrapFactory
from arise.environments.verifier import verify
from arise.types import EnvironmentSpec, Task

REWARD = "/logs/verifier/reward.txt"
UNSOLVED = f"[[ -e /app/solved ]] && echo 1 > {REWARD} || echo 0 > {REWARD}"


def episode(
    tmp_path: Path, commands: Sequence[str], test: str = UNSOLVED, timeout_s: float = 20
) -> tuple[list[str], float]:
    """Outputs of an agent's commands, and the reward that the tests give afterwards."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}\n")
    spec = EnvironmentSpec(storage_mb=32)
    task = Task(id="toy", instruction="", path=tmp_path, tests=tmp_path / "tests", environment=spec)
    settings: dict[str, object] = {
        "sandbox_uid": 64_000,
        "storage_mb": 32,
        "memory_mb": 256,
        "max_processes": 48,
        "max_output_bytes": 50_000,
        "start_timeout_s": 20.0,
    }

    async def run() -> tuple[list[str], float]:
        factory = BubblewrapFactory(**settings)
        environment = factory.create(task, name="toy")
        try:
            await environment.start()
            outputs = [
                (await environment.exec(text, timeout_s=timeout_s)).output for text in commands
            ]
            return outputs, await verify(environment, task)
        finally:
            await environment.stop()
            factory.close()

    return asyncio.run(run())


def test_tests_decide(tmp_path: Path) -> None:
    assert episode(tmp_path, ["touch /app/solved"])[1] == 1.0


def test_host_files_are_not_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    places = f"{tmp_path} {Path.home() / '.ssh'} /etc/shadow /etc/ssl/private /boot /sys/kernel"
    (output, mounts), _ = episode(
        tmp_path, [f"cat {secret}; ls -d {places}", "cat /proc/self/mountinfo"]
    )
    assert output.count("No such file or directory") == 7
    assert str(tmp_path) not in mounts


def test_userland_is_read_only(tmp_path: Path) -> None:
    command = "for f in /usr/x /bin/x /lib/x /etc/x /etc/passwd /dev/x /tests/x; do echo > $f; done"
    (output,), _ = episode(tmp_path, [command])
    assert len(output.splitlines()) == 7
    assert all("Read-only" in line or "denied" in line for line in output.splitlines())


def test_no_privileges(tmp_path: Path) -> None:
    commands = [
        "grep -h -e '^Cap' -e NoNewPrivs /proc/self/status",
        "unshare -U true; unshare -m true; mount -t tmpfs x /tmp; umount /tests; chroot / true",
        "cp /usr/bin/id /tmp/id; chmod u+s /tmp/id; /tmp/id -u; id -u; mknod /tmp/d c 1 3",
        "echo x > /proc/sys/kernel/hostname; echo b > /proc/sysrq-trigger; dmesg; true",
    ]
    (status, namespaces, setuid, kernel), _ = episode(tmp_path, commands)
    assert [line.split()[1] for line in status.splitlines()] == ["0" * 16] * 5 + ["1"]
    assert len(namespaces.splitlines()) >= 5
    assert setuid.startswith("64000\n64000\n")
    assert "Operation not permitted" in setuid
    assert len(kernel.splitlines()) == 3


def test_no_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        commands = [
            f"exec 7<>/dev/tcp/127.0.0.1/{port} && echo connected",
            "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '",
        ]
        (connection, devices), _ = episode(tmp_path, commands)
    assert "Connection refused" in connection
    assert "connected" not in connection
    assert devices == "lo\n"


def test_host_processes_and_supervisor_are_invisible(tmp_path: Path) -> None:
    (output,), reward = episode(tmp_path, ["ls -d /proc/[0-9]* | wc -l; kill -9 -1; echo gone"])
    # The shell's first process, the command's shell, and the two of the pipeline.
    assert int(output.split()[0]) <= 4
    assert reward == 0.0


def test_host_environment_is_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-123")
    (output,), _ = episode(tmp_path, ["env; cat /proc/*/environ | tr '\\0' '\\n'"])
    assert "HOME=/root" in output
    assert "sk-test" not in output


def test_V04_background_writer_is_dead_before_the_tests(tmp_path: Path) -> None:
    writer = (
        f"(while :; do echo 1 > {REWARD}; echo 1 > /logs/verifier/reward.json; sleep .02; done)"
    )
    commands = [f"setsid nohup {writer} >/dev/null 2>&1 &", "(sleep 1; touch /app/solved) & disown"]
    test = f"echo 0 > {REWARD}; sleep 1.2; [[ -e /app/solved ]] && echo 1 > {REWARD}; true"
    assert episode(tmp_path, commands, test)[1] == 0.0


def test_V04_planted_tests_and_rewards_are_gone(tmp_path: Path) -> None:
    commands = [
        f"echo 1 > {REWARD}; echo '{{\"reward\": 1}}' > /logs/verifier/reward.json",
        "rm -rf /logs/verifier; mv /logs /old; ln -sfn /tmp /logs/verifier; mkdir -p /tests",
        "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; mv /tests /t; rm -rf /tests",
        "ln -s /etc/passwd /logs/artifacts/link; mkdir -p /run/home; chmod 0 /logs /tmp",
    ]
    outputs, reward = episode(tmp_path, commands)
    assert reward == 0.0
    assert all("denied" in text or "Read-only" in text or "busy" in text for text in outputs[:3])


def test_V08_nothing_of_the_agents_surroundings_reaches_the_tests(tmp_path: Path) -> None:
    cheat = f"echo 1 > {REWARD}; kill -9 $PPID"
    commands = [
        "mkdir -p ~/bin /app/bin ~/.local/lib/python3.11/site-packages",
        f"printf '#!/bin/sh\\n{cheat}\\n' | tee ~/bin/python3 > /app/bin/python3",
        "chmod +x /app/bin/* ~/bin/*",
        "export PATH=/app/bin:$HOME/bin:$PATH BASH_ENV=/app/evil ENV=/app/evil PYTHONPATH=/app "
        "LD_PRELOAD=/app/evil.so PYTEST_ADDOPTS=-pevil",
        f"echo '{cheat}' | tee /app/evil ~/.bashrc > ~/.profile",
        "echo 'import os; os._exit(0)' | tee /app/sitecustomize.py /app/usercustomize.py "
        "> ~/.local/lib/python3.11/site-packages/usercustomize.py",
        "echo 'raise SystemExit(0)' | tee /conftest.py /pytest.ini > /pyproject.toml",
        "mv /bin /b; rmdir /lib; ln -sfnT /app/bin /bin; echo /app/evil.so > /etc/ld.so.preload",
    ]
    test = (
        f"echo 0 > {REWARD}; ls -A / ~; env; "
        f"/bin/sh -c 'python3 -c \"import sys; sys.exit(5)\"'; [[ $? == 5 ]] || echo 1 > {REWARD}; "
        f"ls /conftest.py /pytest.ini /pyproject.toml && echo 1 > {REWARD}; true"
    )
    assert episode(tmp_path, commands, test)[1] == 0.0


@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1",
        "kill -INT 1; kill -TERM 1; kill -KILL 1; kill -SEGV 1",
        "rm -rf /app /tmp /root /var /logs /home 2>/dev/null; rmdir /*; true",
        "chmod 0 / /app /tmp /root; true",
        "cat /dev/zero > /tmp/fill; for i in $(seq 60); do sleep 99 & done; true",
        "rm -rf /app; ln -s /proc/1 /app",
        "exec 1>&- 2>&-; sleep 99 &",
        "cat /proc/1/fd/3 & sleep 0.1; echo 'x y' > /proc/1/fd/4; : > /proc/1/fd/5",
        "cd /tmp; mkdir gone; cd gone; rmdir ../gone",
        "echo 'exit 1' > /run/shell-state; trap 'exit 9' EXIT",
        "yes garbage > /proc/1/fd/4 & sleep 0.3",
    ],
)
def test_agent_cannot_lose_its_sandbox_to_dodge_a_reward_of_0(tmp_path: Path, command: str) -> None:
    _, reward = episode(tmp_path, [command, "echo next"], timeout_s=4)
    assert reward == 0.0


def test_ptrace_of_the_shell_gains_nothing(tmp_path: Path) -> None:
    """Ending the resident shell with a debugger's call only gives the agent a new one."""
    attach = (
        "import ctypes; libc = ctypes.CDLL(None); "
        "print(libc.ptrace(16, 1, 0, 0)); libc.ptrace(7, 1, 0, 11)"
    )
    outputs, reward = episode(tmp_path, [f'python3 -c "{attach}"', "echo next"], timeout_s=2)
    assert outputs[1].endswith("next\n") or "new one was started" in outputs[1]
    assert reward == 0.0


def test_V08_solved_task_is_still_recognised_after_a_restart(tmp_path: Path) -> None:
    commands = ["touch /app/solved", "kill -9 -1", "echo x"]
    assert episode(tmp_path, commands)[1] == 1.0
