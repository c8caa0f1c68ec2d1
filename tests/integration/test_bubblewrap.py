"""Real bubblewrap sandboxes: the resident shell, its output, its limits, and death."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from arise.environments.bubblewrap import BubblewrapEnvironment
from arise.environments.verifier import verify
from arise.errors import SandboxError
from integration.sandboxes import SETTINGS, in_sandbox, make_factory, make_task, shell


def test_state_exit_codes_and_constant_surroundings(tmp_path: Path) -> None:
    context = tmp_path / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM x\nWORKDIR /srv/a\nENV B='x $y'\nCOPY f .\n")
    (context / "f").write_text("content\n")
    task = make_task(tmp_path, context=context, env={"C": 'from "task"\nline'})

    async def body(environment: BubblewrapEnvironment) -> None:
        assert await shell(
            environment, 'pwd; cat f; echo $B; echo "$C"; hostname; echo ~; id -un'
        ) == ('/srv/a\ncontent\nx $y\nfrom "task"\nline\nsandbox\n/root\nagent\n')
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
        assert await shell(environment, 'pwd; echo "$A"') == "/srv/a/n\nb  c\n"
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
