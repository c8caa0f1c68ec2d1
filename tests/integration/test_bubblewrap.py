"""What only bubblewrap sandboxes have: limits without cgroups, many at once, and death."""

import asyncio
import os
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
from integration.sandboxes import SETTINGS, in_sandbox, make_factory, make_task, own_children, shell


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


def test_X05_characters_are_not_split_at_the_cap(tmp_path: Path) -> None:
    async def body(environment: BubblewrapEnvironment) -> None:
        output = await shell(environment, "python3 -c \"print('☕'*100000, end='')\"")
        assert "\ufffd" not in output
        assert output.count("☕") == 2 * (10_001 // 3)

    in_sandbox(body, make_task(tmp_path), max_output_bytes=20_002)


def test_X13_memory_of_all_processes_together_is_limited(tmp_path: Path) -> None:
    """None of them is over the limit by itself."""
    hog = "python3 -c \"x = b'x' * (100 << 20); import time; time.sleep(30)\""

    async def body(environment: BubblewrapEnvironment) -> None:
        command = f"for i in 1 2 3 4; do {hog} & done; wait -n; echo status $?; kill $(jobs -p)"
        result = await environment.exec(command, timeout_s=60)
        assert "status 137\n" in result.output
        assert "[a process was killed: over the limit of 256 MiB]" in result.output
        assert await shell(environment, "echo alive") == "alive\n"

    in_sandbox(body, make_task(tmp_path, memory_mb=256))


def test_X13_death_of_the_machine_is_an_infrastructure_error_at_once(tmp_path: Path) -> None:
    others = own_children()

    async def body(environment: BubblewrapEnvironment) -> None:
        (machine,) = own_children() - others
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
    others = own_children()

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
    assert own_children() <= others


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
