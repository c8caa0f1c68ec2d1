"""`python study.py` with real runs: interrupted, gone on with, reported, and recognised as done."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from arise.config import register_schemas
from arise.errors import ConfigError
from arise.runs.folder import complete_checkpoints
from arise.runs.lock import RunLock
from arise.study import settings
from arise.study.conduct import conduct
from runs import LAUNCH_VARIABLES, ROOT

pytestmark = pytest.mark.slow

SMALL = (
    "debug=tiny",
    "evaluation=shellworld",
    "evaluation.generator.count=2",
    "evaluation.extra.unseen.generator.count=1",
    "evaluation.attempts_per_task=2",
    "evaluation.eval_interval=2",
    "rubrics.update_interval=2",
    "datamodule.generator.count=12",
    "trainer.max_steps=4",
    "callbacks.checkpoint.keep_every=2",
    "callbacks.checkpoint.every_steps=1",
)


def overrides(*runs: str) -> list[str]:
    """A study of two experiments on one seed, whose runs have these overrides."""
    quoted = ",".join(f'"{override}"' for override in runs)
    return [
        "experiments=[arise,ablation/outcome_only]",
        "seeds=[1]",
        "stage_steps=2",
        "all_fail.experiments=[arise]",
        "all_fail.tasks=2",
        "all_fail.rollouts=2",
        f"overrides=[{quoted}]",
    ]


def study(output_dir: Path, *runs: str) -> DictConfig:
    settings.register()
    register_schemas()
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
        return compose("study", [*overrides(*(runs or SMALL)), f"output_dir={output_dir}"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was interrupted in its first run and then finished."""
    folder = tmp_path_factory.mktemp("study")
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "study.py", *overrides(*SMALL), f"output_dir={folder}"],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not list(folder.glob("runs/arise/seed_1/*/checkpoints/step_*")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, output
    conduct(study(folder), root=ROOT)
    return folder


def test_an_interrupted_run_goes_on_in_its_folder(folder: Path) -> None:
    (run,) = (folder / "runs" / "arise" / "seed_1").iterdir()
    steps = [path.name for path in complete_checkpoints(run)]
    assert steps[-1] == "step_000004"
    assert list((run / ".hydra").glob("from_step_00000*"))
    assert (folder / "logs" / "arise-seed_1.log").read_text()


def test_the_report(folder: Path) -> None:
    report = folder / "report"
    with (report / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    places = {(row["experiment"], row["task_set"], int(row["step"])) for row in rows}
    assert places == {
        (experiment, task_set, step)
        for experiment in ("arise", "ablation/outcome_only")
        for task_set in ("held-out", "unseen")
        for step in (0, 2, 4)
    }
    summary = json.loads((report / "study.json").read_text())
    assert set(summary["final"]) == {"held-out", "unseen"}
    assert summary["method_minus"]["held-out"]["ablation/outcome_only"]["seeds"] == [1]
    assert summary["per_step"]["arise"]["judge requests"]["mean"] > 0
    assert "judge requests" not in summary["per_step"]["ablation/outcome_only"]
    text = (report / "report.md").read_text()
    assert "Outcome-only RL" in text
    for name in ("figure_3a", "figure_3b", "figure_4"):
        assert f"{name}.png" in text
        assert (report / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    probe = json.loads((folder / "probes" / "arise-seed_1.json").read_text())
    assert probe["all_fail"] == {"2": 100.0, "4": 100.0}


def test_a_finished_study_is_recognised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path for path in (folder / "runs").rglob("*") if path.is_file())
    conduct(study(folder), root=ROOT)
    assert sorted(path for path in (folder / "runs").rglob("*") if path.is_file()) == before
    output = capsys.readouterr().out
    assert "2 of 2 runs are finished already" in output
    assert "report of 2 of 2 runs" in output


def test_a_look_in_between_disturbs_nobody(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = RunLock(folder)
    try:
        look = study(folder)
        look.only_report = True
        conduct(look, root=ROOT)
        with pytest.raises(ConfigError, match="in use by"):
            conduct(study(folder), root=ROOT)
    finally:
        lock.release()
    assert "report of 2 of 2 runs" in capsys.readouterr().out


def test_runs_of_another_making_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="made with other settings"):
        conduct(study(folder, *SMALL, "evaluation.generator.count=3"), root=ROOT)
    with pytest.raises(ConfigError, match=r"algorithm\.rubric_weight: 0\.3 -> 0\.2"):
        conduct(study(folder, *SMALL, "algorithm.rubric_weight=0.2"), root=ROOT)
