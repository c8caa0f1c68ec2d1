"""Grading in real bubblewrap sandboxes: faults V01, V11 and X14."""

import resource
from pathlib import Path

import pytest

from arise.environments.bubblewrap import BubblewrapEnvironment
from arise.environments.verifier import verify
from arise.errors import SandboxError, VerifierError
from integration.sandboxes import REWARD, in_sandbox, make_task, shell


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
