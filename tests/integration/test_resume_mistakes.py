"""Going on with a run that cannot go on, or in another way: one sentence, or a warning."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from arise import app, cli
from arise.runs.folder import complete_checkpoints
from arise.runs.lock import RunLock
from arise.runs.manifest import read_manifest, write_manifest
from runs import (
    TASKS,
    TINY,
    compose_config,
    only_run,
    scalars,
    start_training,
    trajectories,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with one run of four iterations."""
    output_dir = tmp_path_factory.mktemp("outputs")
    options = ("trainer.max_steps=4", "callbacks.checkpoint.every_steps=2", "quiet=true")
    app.train(compose_config(*TINY, f"paths.output_dir={output_dir}", *options))
    return output_dir


@pytest.fixture
def output_dir(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(made, tmp_path / "outputs"))


def goes_on(output_dir: Path, *overrides: str) -> None:
    arguments = (*TINY, f"paths.output_dir={output_dir}", "quiet=true", "ckpt_path=last")
    app.train(compose_config(*arguments, "callbacks.checkpoint.every_steps=2", *overrides))


def mistake(output_dir: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """The message of a resume that must fail with exit code 2 and without a traceback."""
    with pytest.raises(SystemExit) as raised:
        cli.run(lambda: goes_on(output_dir, *overrides))
    message = capsys.readouterr().err
    assert raised.value.code == cli.EXIT_USAGE, message
    assert "Traceback" not in message
    return message


def newest(output_dir: Path) -> Path:
    return complete_checkpoints(only_run(output_dir))[-1]


def content(run: Path) -> dict[str, bytes]:
    files = (path for path in run.rglob("*") if path.is_file())
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_a_finished_run_says_so_and_stays_as_it_is(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(only_run(made))
    goes_on(made, "trainer.max_steps=4")
    assert "is finished: its checkpoint step_000004 has reached trainer.max_steps = 4" in (
        capsys.readouterr().out
    )
    after = content(only_run(made))
    assert before.pop("lock") != after.pop("lock")
    assert after == before


@pytest.mark.parametrize("name", ["meta.pt", ".metadata", "__0_0.distcp"])
def test_a_damaged_checkpoint(
    name: str, output_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = newest(output_dir) / name
    file.write_bytes(bytes(file.stat().st_size))
    message = mistake(output_dir, capsys, "trainer.max_steps=6")
    assert f"is damaged: {name} has other content than was saved" in message
    assert "older checkpoint" in message

    # As if the file were too large for a checksum: Lightning's own failure, in one sentence.
    write_manifest(newest(output_dir), step=4, num_processes=1)
    message = mistake(output_dir, capsys, "trainer.max_steps=6")
    assert "step_000004' cannot be put back into this run: " in message
    assert message.count("\n") == 1


def test_a_checkpoint_of_another_program(
    output_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (newest(output_dir) / "arise.json").unlink()
    assert "not a checkpoint of this program" in mistake(output_dir, capsys)


def test_a_version_from_the_future(output_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = newest(output_dir) / "arise.json"
    label.write_text(json.dumps({**json.loads(label.read_text()), "format": 7}))
    assert "format 7, written by a newer version" in mistake(output_dir, capsys)


def test_a_run_in_use(output_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RunLock(only_run(output_dir))
    assert f"in use by process {os.getpid()}" in mistake(output_dir, capsys)
    lock.release()


def test_another_meaning_is_refused_unless_forced(
    output_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("trainer.max_steps=5", "algorithm.optimizer.lr=0.01")
    message = mistake(output_dir, capsys, *options)
    assert "\n  algorithm.optimizer.lr: 0.001 -> 0.01\n" in message
    goes_on(output_dir, *options, "resume.force=true")
    run = only_run(output_dir)
    rates = [value for _, value in scalars(run)["loss/lr"]]
    assert rates == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 0.01], rel=1e-6)
    kept = OmegaConf.load(run / ".hydra" / "from_step_000004" / "config.yaml")
    assert kept.algorithm.optimizer.lr == 0.01


def test_G01_K09_warm_up_goes_on_where_it_was(output_dir: Path) -> None:
    """lr 1e-3 and 5 warm-up steps: update n uses lr·min(1, n/5), resumed or not."""
    goes_on(output_dir, "trainer.max_steps=7")
    points = scalars(only_run(output_dir))["loss/lr"]
    assert [step for step, _ in points] == [1, 2, 3, 4, 5, 6, 7]
    expected = [2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3, 1e-3]
    assert [value for _, value in points] == pytest.approx(expected, rel=1e-6)


def test_a_changed_task_list_warns_and_goes_on_by_id(
    output_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = Path(shutil.copytree(TASKS, tmp_path / "tasks"))
    shutil.rmtree(corpus / "count-errors")
    (corpus / "csv-total").rename(corpus / "csv-sum")
    with caplog.at_level(logging.WARNING):
        goes_on(output_dir, "trainer.max_steps=7", f"datamodule.corpus={corpus}")
    assert "another one than in the saved state (5 tasks then, 4 now)" in caplog.text
    records = trajectories(only_run(output_dir))
    assert len(records) == 7
    drawn = {slot["task_id"] for name in sorted(records)[4:] for slot in records[name]}
    assert drawn <= {path.name for path in corpus.iterdir()}


def test_S03_all_rewards_zero_end_after_exactly_their_rollouts(made: Path) -> None:
    """A policy with random weights solves nothing: no resampling, no gradient, no stop."""
    run = only_run(made)
    config = OmegaConf.load(run / ".hydra" / "config.yaml")
    slots = [slot for step in trajectories(run).values() for slot in step]
    rollout = config.rollout
    assert len(slots) == 4 * rollout.tasks_per_step * rollout.rollouts_per_task
    assert {slot["task_reward"] for slot in slots} == {0.0}
    assert [value for _, value in scalars(run)["loss/grad_norm"]] == [0.0] * 4


def test_K08_steps_names_and_points_agree(made: Path) -> None:
    run = only_run(made)
    assert [path.name for path in complete_checkpoints(run)] == ["step_000002", "step_000004"]
    assert [step for step, _ in scalars(run)["loss/policy"]] == [1, 2, 3, 4]


def test_going_on_from_an_earlier_checkpoint_forgets_what_came_after(output_dir: Path) -> None:
    run = only_run(output_dir)
    before = trajectories(run)
    earlier = run / "checkpoints" / "step_000002"
    goes_on(output_dir, f"ckpt_path={earlier}", "trainer.max_steps=3")
    assert [path.name for path in complete_checkpoints(run)] == ["step_000002", "step_000003"]
    assert trajectories(run) == {name: before[name] for name in sorted(before)[:3]}
    assert [step for step, _ in scalars(run)["loss/policy"]] == [1, 2, 3]


def test_a_run_that_cannot_be_put_back_loses_nothing(
    output_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even what the attempt, from an earlier step and with other settings, would give up."""
    run = only_run(output_dir)
    before, points = content(run), scalars(run)
    earlier = run / "checkpoints" / "step_000002"
    (earlier / "meta.pt").write_bytes(b"no longer")
    write_manifest(earlier, step=2, num_processes=1)
    forced = ("algorithm.optimizer.lr=0.01", "resume.force=true")
    message = mistake(output_dir, capsys, f"ckpt_path={earlier}", "trainer.max_steps=5", *forced)
    assert "cannot be put back into this run" in message
    changed = {name for name, data in content(run).items() if before.get(name) != data}
    assert {name for name in changed if not name.startswith("tensorboard/")} == {
        "lock",
        "checkpoints/step_000002/meta.pt",
        "checkpoints/step_000002/arise.json",
    }
    assert scalars(run) == points
    goes_on(output_dir, "trainer.max_steps=5")
    assert [step for step, _ in scalars(run)["loss/policy"]] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_another_process_count_goes_on(output_dir: Path) -> None:
    """One process, then two, then one again: the same tasks and rollouts as without a break."""
    options = ("callbacks.checkpoint.every_steps=2", "trainer.max_steps=5", "ckpt_path=last")
    devices = ("trainer.devices=2", "trainer.strategy.data_parallel_size=2")
    process = start_training(*TINY, f"paths.output_dir={output_dir}", *options, *devices)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    run = only_run(output_dir)
    assert read_manifest(newest(output_dir))["num_processes"] == 2
    goes_on(output_dir, "trainer.max_steps=6")

    unbroken = output_dir.with_name("unbroken")
    app.train(compose_config(*TINY, f"paths.output_dir={unbroken}", "trainer.max_steps=6"))
    assert trajectories(run) == trajectories(only_run(unbroken))
    assert [step for step, _ in scalars(run)["loss/policy"]] == [1, 2, 3, 4, 5, 6]


def test_a_termination_request_saves_the_last_boundary(output_dir: Path) -> None:
    """What a cluster sends before it takes a machine away."""
    run = only_run(output_dir)

    def terminate() -> None:
        while not (run / "trajectories" / "step_000005.jsonl.gz").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        goes_on(output_dir, "trainer.max_steps=99", "callbacks.checkpoint.every_steps=50")
    saved = newest(output_dir).name
    assert saved in ("step_000005", "step_000006", "step_000007")
    assert sorted(trajectories(run))[-1] == f"{saved}.jsonl.gz"
