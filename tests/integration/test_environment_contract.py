"""One contract for every kind of sandbox: what an episode may rely on."""

import asyncio
import json
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest

from arise.environments.base import Environment
from arise.environments.verifier import verify
from arise.errors import SandboxError, VerifierError
from arise.types import Healthcheck
from integration.sandboxes import KINDS, REWARD, in_environment, shell, task_for

pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_state_persists_and_exit_codes_are_the_commands(kind: str, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "f").write_text("content\n")
    task = task_for(kind, tmp_path, env={"C": 'from "task"\nline'})

    async def body(environment: Environment) -> None:
        output = await shell(environment, 'pwd; cat f; echo "$C"; hostname; echo ~')
        assert output == '/app\ncontent\nfrom "task"\nline\nsandbox\n/root\n'
        command = "export A='b  c' __arise_x=1; X=lost; mkdir -p n && cd n"
        assert await shell(environment, command) == ""
        assert await shell(environment, 'pwd; echo "$A$X"; cat; exit 3') == "/app/n\nb  c\n"
        result = await environment.exec("(exit 7)", timeout_s=5)
        assert (result.exit_code, result.output, result.timed_out) == (7, "", False)
        assert (await environment.exec("kill -9 $$", timeout_s=5)).exit_code == 137
        assert await shell(environment, "nonsense") == "bash: line 1: nonsense: command not found\n"
        assert (await environment.exec("if", timeout_s=5)).exit_code == 2
        assert (await environment.exec("a\0b", timeout_s=5)).exit_code == 126
        assert await shell(environment, 'pwd; echo "$A"') == "/app/n\nb  c\n"
        assert await shell(environment, "echo err >&2; # comment") == "err\n"
        assert await shell(environment, "cat <<'E'\n$A\nE") == "$A\n"
        assert await shell(environment, "x=" + "y" * 300_000 + "; echo ${#x}") == "300000\n"

    in_environment(kind, body, task)


def test_two_sandboxes_show_an_agent_the_same(kind: str, tmp_path: Path) -> None:
    seen: list[str] = []

    async def body(environment: Environment) -> None:
        look = "env | sort; hostname; ls -A / /root /app /tmp; ps -eo args"
        seen.append(await shell(environment, look))

    for _ in range(2):
        in_environment(kind, body, task_for(kind, tmp_path))
    assert seen[0] == seen[1]


def test_X02_background_processes_do_not_hold_a_command(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        begin = time.monotonic()
        await shell(environment, "sleep infinity &")
        await shell(environment, "nohup sleep infinity &")
        await shell(environment, "(sleep 0.3; echo late; sleep 0.2; echo later > /tmp/f) &")
        assert time.monotonic() - begin < 5
        assert "late\n" in await shell(environment, "sleep 0.8; cat /tmp/f")
        assert await shell(environment, "pgrep -c sleep") == "2\n"
        await shell(environment, "yes &")
        begin = time.monotonic()
        await shell(environment, "true")
        assert time.monotonic() - begin < 5

    in_environment(kind, body, task_for(kind, tmp_path))


def test_X03_X04_output_is_capped_with_both_ends(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        command = "printf START; yes | head -c 100000000; printf END"
        result = await environment.exec(command, timeout_s=300)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
        assert result.dropped_bytes == 100_000_008 - 20_000
        assert result.output.startswith("START")
        assert result.output.endswith("END")
        assert f"\n[... {result.dropped_bytes} bytes dropped ...]\n" in result.output
        result = await environment.exec("head -c 10000000 /dev/zero | tr '\\0' x", timeout_s=300)
        assert result.dropped_bytes == 9_980_000
        assert await shell(environment, "echo still here") == "still here\n"

    in_environment(kind, body, task_for(kind, tmp_path))


def test_X05_characters_are_not_split(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        output = await shell(environment, "python3 -c \"print('☕'*100000, end='')\"")
        assert output == "☕" * 100_000

    in_environment(kind, body, task_for(kind, tmp_path), max_output_bytes=400_000)


def test_X06_X07_any_bytes_become_valid_text(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        output = await shell(environment, r"printf '\xff\xfe\x00hello\xed\xa0\xbd'")
        assert output == "\ufffd\ufffd\ufffdhello\ufffd\ufffd\ufffd"
        output = await shell(environment, "head -c 3000 /dev/urandom")
        assert json.loads(json.dumps(output)).encode("utf-8")
        assert await shell(environment, "echo '\ud83d'") == "?\n"

    in_environment(kind, body, task_for(kind, tmp_path))


def test_timeout_kills_the_command_only(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        await shell(environment, "export A=1; cd /tmp; sleep 1000 & sleep 0.05")
        begin = time.monotonic()
        command = "export A=2; echo before; (setsid sleep 2000 &); trap '' TERM INT; sleep 3000"
        result = await environment.exec(command, timeout_s=0.4)
        assert time.monotonic() - begin < 4
        assert (result.timed_out, result.exit_code, result.output) == (True, None, "before\n")
        assert result.duration_s >= 0.4
        output = await shell(environment, "pwd; echo $A; pgrep -a sleep | cut -d' ' -f2-")
        assert output == "/tmp\n1\nsleep 1000\n"

    in_environment(kind, body, task_for(kind, tmp_path))


def test_cancelled_command_does_not_answer_the_next(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        running = asyncio.create_task(environment.exec("sleep 0.3; echo old", timeout_s=9))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        result = await environment.exec("echo new", timeout_s=9)
        assert result.output.startswith("new\n")
        assert result.exit_code == 0

    in_environment(kind, body, task_for(kind, tmp_path))


def test_X13_command_over_the_memory_limit_is_killed(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        await shell(environment, "echo kept > f")
        result = await environment.exec(
            "python3 -c \"x = b'x' * (700 << 20); import time; time.sleep(30)\"", timeout_s=60
        )
        assert result.exit_code == 137
        assert "illed" in result.output
        assert await shell(environment, "cat f") == "kept\n"

    in_environment(kind, body, task_for(kind, tmp_path, memory_mb=256))


def test_disk_is_limited(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        result = await environment.exec("cat /dev/zero > big; ls -l big; echo end", timeout_s=60)
        assert "end" in result.output
        size = await shell(environment, "stat -c %s big")
        assert int(size) <= 64 << 20

    in_environment(kind, body, task_for(kind, tmp_path))


def test_shell_and_everything_else_may_die(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        await shell(environment, "echo kept > f")
        for command in ("kill -9 $PPID", "kill -9 -1", "kill -TERM 1; kill -KILL 1; sleep 0.3"):
            await environment.exec(command, timeout_s=10)
            assert (await shell(environment, "cat /app/f")).endswith("kept\n")

    in_environment(kind, body, task_for(kind, tmp_path))


def test_stop_during_a_command_ends_it(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        running = asyncio.create_task(environment.exec("sleep 100", timeout_s=60))
        await asyncio.sleep(0.1)
        await environment.stop()
        with pytest.raises(SandboxError):
            await asyncio.wait_for(running, 10)
        with pytest.raises(SandboxError, match="not running"):
            await environment.exec("true", timeout_s=5)

    in_environment(kind, body, task_for(kind, tmp_path))


def test_upload_and_download(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "solve.sh").write_bytes(b"echo \xff\n")
    (source / "sub" / "solve.sh").chmod(0o755)

    async def body(environment: Environment) -> None:
        await environment.upload(source, "/solution/deep")
        output = await shell(environment, "stat -c '%a %s' /solution/deep/sub/solve.sh; pwd")
        assert output == "755 7\n/app\n"
        await shell(environment, "mkdir -p out/x; printf 'a\\0b' > out/x/f; (sleep 9; echo no) &")
        await environment.download("/app/out", tmp_path / "got", max_bytes=1000)
        assert (tmp_path / "got" / "out" / "x" / "f").read_bytes() == b"a\0b"
        with pytest.raises(SandboxError, match="larger than 2 bytes"):
            await environment.download("/app/out", tmp_path / "small", max_bytes=2)
        assert not (tmp_path / "small").exists()
        with pytest.raises(SandboxError, match="nothing at /app/absent"):
            await environment.download("/app/absent", tmp_path / "absent", max_bytes=2)
        assert await shell(environment, "pwd") == "/app\n"

    in_environment(kind, body, task_for(kind, tmp_path))


def test_X14_X15_what_comes_out_stays_in_its_folder(kind: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")

    async def body(environment: Environment) -> None:
        command = (
            f"mkdir -p d/sub; ln -s {secret} d/link; ln -s /etc d/etc; ln -s ../.. d/up; mkfifo d/p"
            "; echo x > d/sub/f; ln -s sub/f d/inside; ln d/sub/f d/hard; chmod 600 d/sub/f"
        )
        await shell(environment, command)
        await environment.download("/app/d", tmp_path / "got", max_bytes=100_000)
        got = tmp_path / "got" / "d"
        names = {path.name for path in got.iterdir()}
        assert names <= {"sub", "inside", "hard"}
        assert (got / "sub" / "f").read_text() == "x\n"
        assert not any(path.is_symlink() and not path.exists() for path in got.rglob("*"))
        assert "host secret" not in "".join(
            path.read_text() for path in got.rglob("*") if path.is_file()
        )

    in_environment(kind, body, task_for(kind, tmp_path))


def test_grading_sees_the_files_and_a_clean_place(kind: str, tmp_path: Path) -> None:
    test = (
        f'[[ $PWD == /app && $V == "1 2" && -z $A && $(cat out) == done && -e /tests/extra ]] '
        f"&& echo 0.75 > {REWARD}; ls -A /tests /logs/verifier"
    )
    task = task_for(kind, tmp_path, test)
    (tmp_path / "tests" / "extra").write_text("")

    async def body(environment: Environment) -> None:
        await shell(environment, "export A=1; echo done > out; cd /tmp")
        files = await environment.grade(task.tests, env={"V": "1 2"}, timeout_s=20)
        assert files == {
            "reward.json": None,
            "reward.txt": b"0.75\n",
            "output": b"/logs/verifier:\nreward.txt\n\n/tests:\nextra\ntest.sh\n",
        }
        with pytest.raises(SandboxError, match="session is over"):
            await environment.exec("true", timeout_s=5)

    in_environment(kind, body, task)


def test_a_step_is_graded_and_the_next_one_goes_on(kind: str, tmp_path: Path) -> None:
    common = tmp_path / "common"
    common.mkdir()
    (common / "helper").write_text("cat /app/f > /logs/verifier/reward.txt\n")
    (common / "test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    task = task_for(kind, tmp_path, "bash /tests/helper\n")
    files = tmp_path / "files"
    files.mkdir()
    (files / "given").write_text("1\n")

    async def body(environment: Environment) -> None:
        await shell(environment, "echo 0.5 > f; sleep 100 &")
        got = await environment.grade((common, task.tests), env={}, timeout_s=20)
        assert got["reward.txt"] == b"0.5\n"
        await environment.resume()
        await environment.upload(files, "/app")
        output = await shell(
            environment, "ls -A /tests; cat /logs/verifier/* 2>&1 | head -1; cat f; pgrep sleep"
        )
        assert output.endswith("\n0.5\n")
        assert "helper" not in output
        await shell(environment, "cp given f")
        got = await environment.grade((common, task.tests), env={}, timeout_s=20)
        assert got["reward.txt"] == b"1\n"

    in_environment(kind, body, task)


def test_V01_tests_without_a_reward(kind: str, tmp_path: Path) -> None:
    task = task_for(kind, tmp_path, f"set -e; echo hello; false; echo 0 > {REWARD}")

    async def body(environment: Environment) -> None:
        with pytest.raises(VerifierError, match="output ends: hello"):
            await verify(environment, task)

    in_environment(kind, body, task)


def test_V11_huge_reward_is_read_up_to_a_bound(kind: str, tmp_path: Path) -> None:
    task = task_for(kind, tmp_path, f"head -c 50000000 /dev/zero > {REWARD}")

    async def body(environment: Environment) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(VerifierError, match="larger than 65536"):
            await verify(environment, task)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000

    in_environment(kind, body, task)


@pytest.mark.parametrize(
    "test", [f"ln -s /proc/self/environ {REWARD}", f"mkfifo {REWARD}", f"mkdir {REWARD}"]
)
def test_X14_reward_that_is_no_regular_file(kind: str, tmp_path: Path, test: str) -> None:
    task = task_for(kind, tmp_path, test)

    async def body(environment: Environment) -> None:
        with pytest.raises(VerifierError, match="must hold one number"):
            await verify(environment, task)

    in_environment(kind, body, task)


def test_C05_verifier_timeout(kind: str, tmp_path: Path) -> None:
    test = f"echo 1 > {REWARD}; echo slow; sleep 99"
    task = task_for(kind, tmp_path, test, verifier_timeout_s=1.5)

    async def body(environment: Environment) -> None:
        with pytest.raises(VerifierError, match=r"within 1\.5 s; output ends: slow"):
            await verify(environment, task)

    in_environment(kind, body, task)


def test_missing_tests_are_an_infrastructure_error(kind: str, tmp_path: Path) -> None:
    async def body(environment: Environment) -> None:
        with pytest.raises(SandboxError, match="no such folder"):
            await environment.grade(tmp_path / "missing", env={}, timeout_s=5)

    in_environment(kind, body, task_for(kind, tmp_path))


def test_skills_of_the_benchmark_are_mounted(kind: str, tmp_path: Path) -> None:
    skills = tmp_path / "skills"
    (skills / "sorting").mkdir(parents=True)
    (skills / "sorting" / "SKILL.md").write_text("Sort stably.\n")
    task = task_for(kind, tmp_path, skills=skills)

    async def body(environment: Environment) -> None:
        assert await shell(environment, "cat /skills/*/SKILL.md") == "Sort stably.\n"

    in_environment(kind, body, task)


def test_skills_of_the_image_are_found_at_the_same_place(kind: str, tmp_path: Path) -> None:
    skills = tmp_path / "context" / "own" / "sorting"
    skills.mkdir(parents=True)
    (skills / "SKILL.md").write_text("Sort stably.\n")
    task = task_for(kind, tmp_path, skills_dir="/app/own")

    async def body(environment: Environment) -> None:
        assert await shell(environment, "cat /skills/*/SKILL.md") == "Sort stably.\n"

    in_environment(kind, body, task)


def test_health_check(kind: str, tmp_path: Path) -> None:
    command = "echo x >> f; (( $(wc -l < f) > 4 ))"
    # Failures do not count at first, and attempts have a pause of their own then.
    healthy = Healthcheck(
        command=command, interval_s=60, start_period_s=60, start_interval_s=0.05, retries=1
    )
    task = task_for(kind, tmp_path, healthcheck=healthy)

    async def body(environment: Environment) -> None:
        assert await shell(environment, "wc -l < f") == "5\n"

    in_environment(kind, body, task)
    broken = Healthcheck(command="echo down; exit 1", interval_s=0.01, retries=2)
    spec = replace(task.environment, healthcheck=broken)
    with pytest.raises(SandboxError, match=r"failed 2 times; its output ends: down"):
        in_environment(kind, body, replace(task, environment=spec))
