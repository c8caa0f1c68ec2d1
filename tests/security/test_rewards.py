"""An agent that wants a reward it did not earn, or to lose its episode instead of a reward of 0.

In every kind of sandbox: bubblewrap started by root and by an ordinary user, Docker with the agent
as root and as an ordinary user of its image.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from security.players import REWARD, UNSOLVED, Player, UserPlayer

DOCKER = pytest.mark.docker
ROOT_KINDS = ["bubblewrap", pytest.param("docker", marks=DOCKER)]
USER_KINDS = ["bubblewrap-user", pytest.param("docker-user", marks=DOCKER)]
KINDS = [*ROOT_KINDS, *USER_KINDS]
Get = Callable[[str], Player | UserPlayer]


# Forged rewards.


@pytest.mark.parametrize("kind", KINDS)
def test_tests_decide(kind: str, player_of: Get) -> None:
    assert player_of(kind).episode(["touch /app/solved"])[1] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_V04_background_writers_are_dead_before_the_tests(kind: str, player_of: Get) -> None:
    loop = f"while :; do echo 1 > {REWARD}; echo 1 > /logs/verifier/reward.json; sleep .02; done"
    commands = [
        f"setsid nohup bash -c '{loop}' >/dev/null 2>&1 &",
        f"(exec -a kworker bash -c '{loop}' &) ; disown -a",
        "(until [[ -e /app/graded ]]; do sleep .05; done; touch /app/solved) & disown",
        f"python3 -c \"import os; os.fork() or os.setsid() or os.fork() or os.execvp('bash', "
        f"['init', '-c', '{loop}'])\"; true",
    ]
    test = (
        f"echo 0 > {REWARD}; touch /app/graded; sleep 1.2; "
        f"[[ -e /app/solved ]] && echo 1 > {REWARD}; true"
    )
    assert player_of(kind).episode(commands, test)[1] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_V04_planted_tests_and_rewards_are_gone(kind: str, player_of: Get) -> None:
    commands = [
        f"echo 1 > {REWARD}; echo '{{\"reward\": 1}}' > /logs/verifier/reward.json",
        "mkdir -p /tests; echo 'raise SystemExit' > /tests/conftest.py",
        "rm -rf /logs/verifier; mv /logs /old; mkdir /logs; ln -sfn /tmp /logs/verifier; true",
        "echo 1 > /tmp/reward.txt; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
        "mv /tests /t; ln -s /app /tests; chattr +i /tests; chmod 0 /logs; true",
    ]
    test = f"ls -A /tests; [[ -e /tests/conftest.py ]] && echo 1 > {REWARD} || {UNSOLVED}"
    assert player_of(kind).episode(commands, test)[1] == 0.0


SURROUNDINGS = (
    f"echo 0 > {REWARD}; ls -A / ~; env; "
    f"/bin/sh -c 'python3 -c \"import sys; sys.exit(5)\"'; [[ $? == 5 ]] || echo 1 > {REWARD}; "
    "for f in /conftest.py /pytest.ini /pyproject.toml; do "
    f"[[ ! -s $f ]] || echo 1 > {REWARD}; done"
)


@pytest.mark.parametrize("kind", KINDS)
def test_V08_nothing_of_the_agents_surroundings_reaches_the_tests(
    kind: str, player_of: Get
) -> None:
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
    ]
    assert player_of(kind).episode(commands, SURROUNDINGS)[1] == 0.0


FAKES = {
    "programs": "for f in /bin/bash /bin/sh /usr/bin/python3.11 /bin/env /bin/rm /bin/mkdir; do "
    "cat /tmp/fake > $f || { rm $f; cp /tmp/fake $f; }; done",
    "program folder": "mv /usr/bin /usr/was; mkdir /usr/bin; for f in bash sh python3 env; do "
    "cp /tmp/fake /usr/bin/$f; done",
    "link for a folder": "cp -r /usr/sbin /tmp/sbin; rm -rf /usr/local/bin /bin; "
    "mkdir /tmp/fakes; cp /tmp/fake /tmp/fakes/python3; ln -s /tmp/fakes /usr/local/bin; "
    "ln -s /tmp/fakes /bin",
    "earlier on the path": "cp /tmp/fake /usr/local/bin/python3; cp /tmp/fake /usr/local/sbin/sh",
    "loader": "echo /tmp/evil.so > /etc/ld.so.preload; echo x > /lib/x86_64-linux-gnu/libc.so.6",
    "python's own modules": "echo 'import os; os._exit(0)' > "
    "/usr/lib/python3.11/os.py; echo 'import os; os._exit(0)' | "
    "tee /usr/lib/python3.11/sitecustomize.py > /usr/lib/python3/dist-packages/sitecustomize.py",
}


FAKE = (
    "cp /bin/bash /tmp/real; "
    f"printf '#!/tmp/real\\necho 1 > {REWARD}\\nexit 0\\n' > /tmp/fake; chmod 755 /tmp/fake"
)


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("kind", ROOT_KINDS)
def test_V08_fake_interpreters_are_not_run(kind: str, fake: str, player_of: Get) -> None:
    commands = [FAKE, FAKES[fake]]
    assert player_of(kind).episode(commands, SURROUNDINGS, timeout_s=4)[1] == 0.0


@pytest.mark.parametrize("kind", USER_KINDS)
def test_V08_fake_interpreters_of_an_ordinary_user(kind: str, player_of: Get) -> None:
    commands = [FAKE, *FAKES.values()]
    assert player_of(kind).episode(commands, SURROUNDINGS, timeout_s=4)[1] == 0.0


# Dodged rewards: a sandbox that its own agent breaks is graded all the same.


DODGES = [
    "kill -9 -1",
    "kill -INT 1; kill -TERM 1; kill -KILL 1; kill -SEGV 1",
    "rm -rf /app /tmp /root /var /logs /home 2>/dev/null; rmdir /*; true",
    "chmod 0 / /app /tmp /root; true",
    "cat /dev/zero > /tmp/fill; for i in $(seq 60); do sleep 99 & done; true",
    "rm -rf /app; ln -s /proc/1 /app",
    "exec 1>&- 2>&-; sleep 99 &",
    "cat /proc/1/fd/3 & sleep 0.1; echo 'x y' > /proc/1/fd/4; : > /proc/1/fd/5",
    "cd /tmp; mkdir gone; cd gone; rmdir ../gone",
    "echo 'exit 1' | tee /run/shell-state > /dev/shm/.shell-state; trap 'exit 9' EXIT",
    "yes garbage > /proc/1/fd/4 & sleep 0.3",
    "printf '\\0%s 7\\0' $(tr '\\0' ' ' </proc/$PPID/environ); echo 1 > /proc/1/fd/0; true",
]
# Those that end other things in a container than in bubblewrap.
DOCKER_DODGES = [DODGES[index] for index in (0, 1, 2, 5, 11)]


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        *(("bubblewrap", command) for command in DODGES),
        *(pytest.param("docker", command, marks=DOCKER) for command in DOCKER_DODGES),
    ],
)
def test_agent_cannot_lose_its_sandbox_to_dodge_a_reward_of_0(
    kind: str, command: str, player_of: Get
) -> None:
    _, reward = player_of(kind).episode([command, "echo next"], timeout_s=4)
    assert reward == 0.0


@pytest.mark.parametrize("kind", USER_KINDS)
def test_dodges_of_an_ordinary_user_one_after_the_other(kind: str, player_of: Get) -> None:
    outputs, reward = player_of(kind).episode([*DOCKER_DODGES, "echo next"], timeout_s=4)
    assert outputs[-1].endswith("next\n")
    assert reward == 0.0


@pytest.mark.parametrize("kind", ROOT_KINDS)
def test_ptrace_of_the_first_processes_gains_nothing(kind: str, player_of: Get) -> None:
    """Ending the resident shell, or the first process, only gives the agent a new one."""
    attach = (
        "import ctypes, glob, os; libc = ctypes.CDLL(None)\n"
        "for p in sorted(int(f[6:]) for f in glob.glob('/proc/[0-9]*')):\n"
        "    if p != os.getpid() and libc.ptrace(16, p, 0, 0) == 0: libc.ptrace(7, p, 0, 11)"
    )
    outputs, reward = player_of(kind).episode(
        [f'python3 -c "{attach}"', "echo next"], timeout_s=1.5
    )
    assert outputs[1].endswith("next\n") or "new" in outputs[1]
    assert reward == 0.0


@pytest.mark.parametrize("kind", ROOT_KINDS)
def test_V08_solved_task_is_still_recognised_after_a_restart(kind: str, player_of: Get) -> None:
    assert player_of(kind).episode(["touch /app/solved", "kill -9 -1", "echo x"])[1] == 1.0
