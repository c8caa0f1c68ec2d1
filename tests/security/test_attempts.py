"""An agent that wants out of its sandbox: host, privileges, network, processes, resources.

Each attempt is made in every kind of sandbox: bubblewrap started by root and by an ordinary user,
Docker with the agent as root and as an ordinary user of its image.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from integration.sandboxes import wait_for
from security.conftest import SECRET
from security.players import Player, UserPlayer

DOCKER = pytest.mark.docker
BUBBLEWRAP = ["bubblewrap", "bubblewrap-user"]
KINDS = [
    *BUBBLEWRAP,
    pytest.param("docker", marks=DOCKER),
    pytest.param("docker-user", marks=DOCKER),
]
KIND_NAMES = ["bubblewrap", "bubblewrap-user", "docker", "docker-user"]
Get = Callable[[str], Player | UserPlayer]


# Files and secrets of the host.


@pytest.mark.parametrize("kind", KINDS)
def test_host_files_are_not_there(kind: str, player_of: Get, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    places = f"{secret} {tmp_path} {Path(__file__).parent} {Path.home()}/.ssh /boot/* /var/run/d*k"
    output = player_of(kind).exec(f"cat {secret}; ls -d {places}; cat /proc/self/mountinfo").output
    assert "host secret" not in output
    assert output.count("No such file") + output.count("denied") == 7
    assert str(tmp_path) not in output.split("\n", 8)[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_disks_of_the_host_cannot_be_opened(kind: str, player_of: Get) -> None:
    command = (
        "ls /dev | tr '\\n' ' '; mknod /tmp/disk b 254 0; mknod /tmp/mem c 1 1; "
        "head -c 9 /tmp/disk /tmp/mem /dev/mem /dev/kmsg /dev/vda /dev/sda; "
        "mount -t proc p /tmp; losetup -f; true"
    )
    output = player_of(kind).exec(command).output
    devices = output.splitlines()[0].split()
    assert not [name for name in devices if name.startswith(("sd", "vd", "nvme", "mem", "loop"))]
    assert output.count("No such file") + output.count("denied") + output.count("permitted") >= 7


@pytest.mark.parametrize("kind", KINDS)
def test_host_environment_is_not_inherited(kind: str, player_of: Get) -> None:
    output = player_of(kind).exec("env; cat /proc/*/environ | tr '\\0' '\\n'").output
    assert "HOME=" in output
    assert os.environ["OPENAI_API_KEY"] == SECRET
    assert SECRET not in output


@pytest.mark.parametrize("kind", KINDS)
def test_artifacts_lead_to_nothing_of_the_host(kind: str, player_of: Get) -> None:
    """Links, absolute names and devices of what is copied out."""
    command = (
        "mkdir -p /tmp/a/sub; cd /tmp/a; ln -s /etc/passwd link; ln -s / root; ln -s ../../.. up; "
        "ln -s sub/../../../../etc/shadow deep; mkfifo fifo; echo mine > sub/f; ln -s sub/f good"
    )
    player_of(kind).exec(command)
    found = player_of(kind).fetch("/tmp/a")
    assert found["a/sub/f"] == "mine\n"
    assert set(found) <= {"a/sub/f", "a/good"}


# Privileges.


@pytest.mark.parametrize("kind", KINDS)
def test_no_new_privileges_and_no_way_to_more_capabilities(kind: str, player_of: Get) -> None:
    player = player_of(kind)
    status = player.exec("grep -h -e '^CapEff' -e NoNewPrivs /proc/self/status").output
    capabilities, no_new = (line.split()[1] for line in status.splitlines())
    assert no_new == "1"
    # Docker's root keeps file and user capabilities: none of network, module, mount or raw I/O.
    powerful = 1 << 12 | 1 << 13 | 1 << 16 | 1 << 17 | 1 << 19 | 1 << 21 | 1 << 25 | 1 << 27
    assert int(capabilities, 16) & powerful == 0
    if kind != "docker":
        assert int(capabilities, 16) == 0
    command = "unshare -m true; unshare -n true; mount -t tmpfs x /mnt; umount /proc; true"
    assert len(player.exec(command).output.splitlines()) >= 4
    assert player.exec("mountpoint -q /mnt || echo none").output == "none\n"


@pytest.mark.parametrize("kind", [*BUBBLEWRAP, KINDS[-1]])
def test_setuid_programs_give_nothing(kind: str, player_of: Get) -> None:
    command = "cp /usr/bin/id /tmp/id; chmod u+s /tmp/id; /tmp/id -u; id -u; su -c id </dev/null"
    lines = player_of(kind).exec(command).output.splitlines()
    assert lines[0] == lines[1] != "0"
    assert "uid=0" not in "\n".join(lines)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_settings_cannot_be_changed(kind: str, player_of: Get) -> None:
    command = (
        "for f in /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/sys/vm/overcommit_memory "
        "/sys/kernel/mm/ksm/run /proc/sys/kernel/core_pattern; do echo 1 > $f; done; "
        "dmesg; sysctl -w kernel.panic=1; echo end"
    )
    output = player_of(kind).exec(command).output
    assert len(output.splitlines()) >= 6
    assert Path("/proc/sys/kernel/core_pattern").read_text() != "1\n"


@pytest.mark.parametrize("kind", KINDS)
def test_control_groups_and_daemons_are_out_of_reach(kind: str, player_of: Get) -> None:
    command = (
        "find / -xdev -name 'docker.sock' 2>/dev/null; "
        "d=$(find /sys/fs/cgroup -maxdepth 2 -name 'memory.limit_in_bytes' -o -maxdepth 2 -name "
        "memory.max 2>/dev/null | head -1); [[ -z $d ]] || echo -1 > $d && echo written; "
        "mkdir /sys/fs/cgroup/*/x && echo made; echo end"
    )
    output = player_of(kind).exec(command).output
    assert "docker.sock" not in output
    assert "made" not in output
    assert output.endswith("end\n")


@pytest.mark.parametrize("kind", KINDS)
def test_no_terminal_takes_injected_input(kind: str, player_of: Get) -> None:
    command = (
        "python3 -c \"import fcntl; fcntl.ioctl(open('/dev/tty'), 0x5412, b'x')\"; "
        "python3 -c \"import fcntl; fcntl.ioctl(0, 0x5412, b'x')\"; true"
    )
    output = player_of(kind).exec(command).output
    assert "No such device or address" in output
    assert "Inappropriate ioctl" in output


@pytest.mark.parametrize("kind", BUBBLEWRAP)
def test_userland_is_read_only(kind: str, player_of: Get) -> None:
    command = "for f in /usr/x /bin/x /lib/x /etc/x /etc/passwd /dev/x /tests/x; do echo > $f; done"
    output = player_of(kind).exec(command).output
    assert len(output.splitlines()) == 7
    assert all("Read-only" in line or "denied" in line for line in output.splitlines())


# Network and processes of the host.


@pytest.mark.parametrize("kind", KINDS)
def test_no_network(kind: str, player_of: Get) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = (
            f"exec 7<>/dev/tcp/127.0.0.1/{port} && echo connected; "
            "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\0x')\"; "
            "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
        )
        output = player_of(kind).exec(command).output
    assert "connected" not in output
    assert "Connection refused" in output
    assert output.endswith("\nlo\n")


@pytest.mark.parametrize("kind", KINDS)
def test_host_processes_are_invisible(kind: str, player_of: Get) -> None:
    command = (
        f"set -- /proc/[0-9]*; echo $#; kill -9 {os.getpid()}; cat /proc/{os.getppid()}/cmdline"
    )
    output = player_of(kind).exec(command).output
    assert int(output.split()[0]) <= 9
    assert "No such" in output


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_survives_the_sandbox(kind: str, player_of: Get) -> None:
    seconds = f"97531{KIND_NAMES.index(kind)}"
    commands = [
        f"sleep {seconds} & setsid nohup sleep {seconds} & (trap '' HUP TERM INT; "
        f"(sleep {seconds} &) & disown; exec -a kworker sleep {seconds}) & disown -a",
        f'python3 -c "import os; os.fork() or os.setsid() or os.fork() or '
        f"os.execvp('sleep', ['sleep', '{seconds}'])\"; pgrep -fc {seconds}",
    ]
    outputs, _ = player_of(kind).episode(commands, graded=False)
    assert int(outputs[1].split()[-1]) >= 4

    def survivors() -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if seconds in (process.info["cmdline"] or ())
        ]

    assert wait_for(lambda: not survivors()), survivors()


# Resources.


@pytest.mark.parametrize("kind", KINDS)
def test_fork_bomb_is_contained(kind: str, player_of: Get) -> None:
    result = player_of(kind).exec("f() { f | f & }; f; sleep 60", timeout_s=1)
    assert result.timed_out
    assert player_of(kind).exec("echo alive", 60).output.endswith("alive\n")


@pytest.mark.parametrize("kind", KINDS)
def test_memory_bomb_is_contained(kind: str, player_of: Get) -> None:
    command = "python3 -c \"x = [b'x' * (64 << 20) for _ in range(40)]; input()\"; echo $?"
    output = player_of(kind).exec(command, 60).output
    assert "137\n" in output or "MemoryError" in output
    assert player_of(kind).exec("echo alive", 60).output.endswith("alive\n")


@pytest.mark.parametrize("kind", KINDS)
def test_disk_fill_is_contained(kind: str, player_of: Get) -> None:
    command = "for d in /tmp /app /dev/shm /var/tmp; do cat /dev/zero > $d/fill; done; echo end"
    commands = [command, "cat /tmp/fill /app/fill /dev/shm/fill /var/tmp/fill 2>&- | wc -c"]
    (_, size), reward = player_of(kind).episode(commands, timeout_s=60)
    # Each file by the limit on a file; all of them by disk, memory and watchdog.
    assert int(size.splitlines()[0]) <= 4 * 64 << 20
    assert reward == 0.0
