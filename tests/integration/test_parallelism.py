"""Tensor and sequence parallelism on two and four processes are the training of one.

All cases of so many processes run in one launch, by torchrun, on gloo.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from learning import Trained
from parallelism import CASES, CASES_OF_FOUR, RESUMED, STEPS, save_first_step
from runs import LAUNCH_VARIABLES, ROOT, kill_group, rendezvous_port

pytestmark = pytest.mark.slow

_TIMEOUT_S = 300

Result = tuple[dict[str, Tensor], list[dict[str, float]], list[dict[int, Tensor]]]


def launch(num_processes: int, folder: Path) -> None:
    """`tests/parallelism.py` under torchrun; a hang is killed and fails."""
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nproc-per-node={num_processes}", f"--master-port={rendezvous_port()}"),
            *("parallelism.py", f"--folder={folder}", f"--processes={num_processes}"),
        ],
        cwd=ROOT / "tests",
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise
    assert process.returncode == 0, printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made of every case."""
    folder = tmp_path_factory.mktemp("two")
    save_first_step(1, folder / "by_one")
    launch(2, folder)
    return folder


@pytest.fixture(scope="module")
def folder_of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    launch(4, folder)
    return folder


@functools.cache
def alone(name: str) -> Trained:
    return (CASES | CASES_OF_FOUR)[name].train(1)


def require_same(two: Result, one: Trained) -> None:
    weights, metrics, log_ratios = two
    assert list(weights) == list(one.weights)
    for name, weight in one.weights.items():
        assert (weights[name] - weight).abs().max() <= 1e-6, name
    assert len(metrics) == len(one.metrics)
    for two_metrics, one_metrics in zip(metrics, one.metrics, strict=True):
        assert two_metrics.keys() == one_metrics.keys()
        assert two_metrics["loss/policy"] == pytest.approx(one_metrics["loss/policy"], abs=1e-6)
        for key, value in one_metrics.items():
            assert two_metrics[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key
    for two_rows, one_rows in zip(log_ratios, one.log_ratios, strict=True):
        assert two_rows.keys() == one_rows.keys()
        for row, ratios in one_rows.items():
            torch.testing.assert_close(two_rows[row], ratios, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_like_one(name: str, folder: Path) -> None:
    """Loss to 1e-6, log-probabilities to 1e-5, weights after two clipped steps to 1e-6."""
    require_same(torch.load(folder / f"{name}.pt"), alone(name))


@pytest.mark.parametrize("name", CASES_OF_FOUR)
def test_two_dimensions_at_once_train_like_one_process(name: str, folder_of_four: Path) -> None:
    require_same(torch.load(folder_of_four / f"{name}.pt"), alone(name))


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("hybrid")])
def test_hybrid_models_train_in_rows(name: str) -> None:
    policy = alone(name).module.policy
    assert policy is not None
    assert policy.layout == "rows"


def test_the_clipped_norm_is_that_of_one_process(folder: Path) -> None:
    for name in CASES:
        one, (_, two, _) = alone(name).metrics, torch.load(folder / f"{name}.pt")
        for step in range(len(STEPS)):
            norm = one[step]["loss/grad_norm"]
            assert norm > 0.05, "nothing was clipped"
            assert two[step]["loss/grad_norm"] == pytest.approx(norm, rel=1e-6), name


@pytest.mark.parametrize("loaded_by", ["one", "two"])
def test_a_checkpoint_goes_on_with_other_parallelism(loaded_by: str, folder: Path) -> None:
    whole = alone(RESUMED)
    if loaded_by == "two":
        weights, metrics, _ = torch.load(folder / "resumed.pt")
    else:
        resumed = CASES[RESUMED].train(1, resumed=folder / "by_two")
        weights, metrics = resumed.weights, resumed.metrics
    assert len(metrics) == 1
    norm = whole.metrics[1]["loss/grad_norm"]
    assert metrics[0]["loss/grad_norm"] == pytest.approx(norm, rel=1e-5)
    for name, weight in whole.weights.items():
        assert (weights[name] - weight).abs().max() <= 1e-6, name
