"""`python -m arise.tasks check`: the table, oracles in real sandboxes, near-duplicates."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from arise import assembly
from arise.errors import ConfigError
from arise.tasks.__main__ import main
from arise.tasks.corpus import load_corpus
from arise.tasks.oracle import OracleReport, run_oracles
from arise.validation import validate
from integration.sandboxes import IMAGE, REWARD, make_docker_factory, make_factory
from runs import compose_config

TASKS = Path(__file__).parents[1] / "data" / "tasks"


def write_task(folder: Path, test: str, solution: str | None, manifest: str = "") -> Path:
    for name in ("tests", "environment", "solution"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(manifest)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    (folder / "tests" / "test.sh").write_text(test)
    if solution is not None:
        (folder / "solution" / "solve.sh").write_text(solution)
    else:
        (folder / "solution").rmdir()
    return folder


def test_table_of_the_bundled_tasks_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(TASKS)]) == 0
    output = capsys.readouterr().out
    assert "5 tasks, 0 broken" in output
    assert "csv-total" in output
    assert main(["check", str(TASKS), "--against", str(TASKS), "--threshold", "0.99"]) == 1
    assert "near-duplicate: csv-total ~ csv-total: 100% of the instruction" in (
        capsys.readouterr().out
    )
    assert main(["check", "/no/such/folder"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_broken_tasks_stand_in_the_table_as_a_user_sees_it(tmp_path: Path) -> None:
    write_task(tmp_path / "bad", "", None, "[agent]\ntimeout_sec = 0")
    done = subprocess.run(
        [sys.executable, "-m", "arise.tasks", "check", str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 1
    assert "0 tasks, 1 broken" in done.stdout
    text = " ".join(done.stdout.split())
    assert f"BROKEN {tmp_path}/bad/task.toml [agent] timeout_sec: = 0 is not a number" in text


def reports_of(folder: Path, factory: object) -> dict[str, OracleReport]:
    async def run() -> list[OracleReport]:
        tasks = load_corpus(folder)
        return [report async for report in run_oracles(tasks, factory, concurrency=2)]

    try:
        return {report.task_id: report for report in asyncio.run(run())}
    finally:
        factory.close()


def test_oracles_that_do_not_hold_what_they_promise(tmp_path: Path) -> None:
    solved = f"[[ -f /app/done ]] && echo 1 > {REWARD} || echo 0 > {REWARD}"
    write_task(tmp_path / "good", solved, "echo > done")
    write_task(tmp_path / "wrong", solved, "echo > elsewhere")
    write_task(tmp_path / "always", f"echo 1 > {REWARD}", None)
    write_task(tmp_path / "fails", solved, "echo oops; exit 3")
    write_task(tmp_path / "gpus", solved, None, "[environment]\ngpus = 1")
    steps = '[[steps]]\nname = "one"\nmin_reward = 1.0\n[[steps]]\nname = "two"\n'
    write_task(tmp_path / "steps", "", None, steps)
    for name in ("one", "two"):
        step = write_task(
            tmp_path / "steps" / "steps" / name, solved, "bash setup.sh && echo > done"
        )
        (step / "task.toml").unlink()
        (step / "workdir").mkdir()
        (step / "workdir" / "setup.sh").write_text("test $PWD == /app\n")
    reports = reports_of(tmp_path, make_factory())
    assert (reports["steps"].oracle, reports["steps"].no_op) == (1, 0)
    assert (reports["good"].oracle, reports["good"].no_op, reports["good"].problems) == (1, 0, ())
    assert reports["wrong"].problems == ("the oracle's reward is 0, not 1",)
    assert reports["always"].problems == ("the no-op's reward is 1, not 0",)
    assert "exit code 3: oops" in reports["fails"].problems[0]
    assert "gpus = 1" in reports["gpus"].skipped


def test_bundled_tasks_have_good_oracles() -> None:
    reports = reports_of(TASKS, make_factory())
    assert len(reports) == 5
    assert all((report.oracle, report.no_op) == (1.0, 0.0) for report in reports.values())


@pytest.mark.docker
def test_terminal_bench_1_task_runs_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "legacy"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text("instruction: Make done.\ncategory: software\n")
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\nCOPY . /app\n")
    (folder / "solution.sh").write_text("touch /app/done\n")
    (folder / "tests" / "check.sh").write_text("[[ -f /app/done && ! -e /app/solution.sh ]]\n")
    (folder / "run-tests.sh").write_text(
        "echo '=== short test summary info ==='\n"
        'bash "$TEST_DIR/check.sh" && echo "PASSED x::a" || echo "FAILED x::a - why"\n'
    )
    report = reports_of(folder, make_docker_factory(network="none"))["legacy"]
    assert (report.oracle, report.no_op, report.problems) == (1.0, 0.0, ())


def test_on_broken_reaches_the_loader(tmp_path: Path) -> None:
    write_task(tmp_path / "good", "", None)
    write_task(tmp_path / "bad", "", None, "[agent]\ntimeout_sec = 0")
    corpus = ["datamodule=folder", f"datamodule.corpus={tmp_path}"]
    cfg = compose_config(*corpus, "datamodule.on_broken=skip")
    assert [task.id for task in assembly.load_tasks(cfg.datamodule)] == ["good"]
    with pytest.raises(ConfigError, match=r"\[agent\] timeout_sec"):
        assembly.load_tasks(compose_config(*corpus).datamodule)
    with pytest.raises(ConfigError, match=r"datamodule\.on_broken = 'maybe' is not one of"):
        validate(compose_config(*corpus, "datamodule.on_broken=maybe"))
