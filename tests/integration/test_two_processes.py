"""One and two processes must be the same training: real FSDP2, real trainer, gloo.

`make repeat` runs this file 20 times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from arise import app
from arise.runs.folder import complete_checkpoints
from learning import STEPS, num_generated, train
from runs import (
    LAUNCH_VARIABLES,
    ROOT,
    compose_config,
    kill_group,
    only_run,
    rendezvous_port,
    scalars,
    start_training,
    trajectories,
)

pytestmark = pytest.mark.slow

_TIMEOUT_S = 300

Result = tuple[dict[str, Tensor], list[dict[str, float]], list[dict[int, Tensor]]]


def on_two_processes(output: Path) -> Result:
    """`tests/learning.py` as a program; a hang is killed and fails."""
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, "learning.py", "--devices=2", f"--output={output}"],
        cwd=ROOT / "tests",
        env={
            **inherited,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "STANDALONE_PORT": str(rendezvous_port()),
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
    metrics = json.loads((output / "metrics.json").read_text())
    return torch.load(output / "weights.pt"), metrics, torch.load(output / "log_ratios.pt")


@pytest.fixture(scope="module")
def single() -> Result:
    trained = train(STEPS, max_grad_norm=0.05)
    return trained.weights, trained.metrics, trained.log_ratios


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return on_two_processes(tmp_path_factory.mktemp("two_processes"))


def test_L02_weights_after_five_steps_are_the_same(single: Result, double: Result) -> None:
    assert list(single[0]) == list(double[0])
    worst = max((single[0][name] - double[0][name]).abs().max().item() for name in single[0])
    assert worst <= 1e-6


def test_L07_steps_with_an_empty_rank_end_and_are_the_same(single: Result, double: Result) -> None:
    """Step 2 has one row for two ranks, step 4 none at all."""
    assert len(double[1]) == len(STEPS) == 5
    assert double[1][1]["loss/grad_norm"] > 0.0
    assert double[1][3]["loss/grad_norm"] == single[1][3]["loss/grad_norm"] == 0.0


def test_L08_metrics_are_of_all_ranks_and_count_nothing_twice(
    single: Result, double: Result
) -> None:
    for step, (one, two) in enumerate(zip(single[1], double[1], strict=True)):
        assert one.keys() == two.keys()
        for name in one:
            # Both are averages of float32 numbers, added up in another order.
            assert two[name] == pytest.approx(one[name], rel=1e-6, abs=1e-6), (step, name)
    shares = [metrics.get("ratio/masked_high_share", 0.0) for metrics in double[1]]
    for share, rows in zip(shares, STEPS, strict=True):
        tokens = share * num_generated(rows)
        assert tokens == pytest.approx(round(tokens), abs=1e-9)
    assert shares[2] == 1.0
    assert double[1][4]["ratio/dual_clipped_share"] > 0.0


def test_log_ratios_of_every_rank_arrive_under_their_rows(single: Result, double: Result) -> None:
    for rows, one, two in zip(STEPS, single[2], double[2], strict=True):
        assert sorted(one) == sorted(two) == list(range(len(rows)))
        for number in one:
            assert torch.allclose(one[number], two[number], atol=1e-5), number


def test_the_norm_that_is_clipped_is_that_of_one_process(single: Result, double: Result) -> None:
    for one, two in zip(single[1], double[1], strict=True):
        assert two["loss/grad_norm"] == pytest.approx(one["loss/grad_norm"], rel=1e-6)
    assert all(single[1][step]["loss/grad_norm"] > 0.05 for step in (0, 1, 4))


# The bundled policy passes some tasks and fails others, so there is something to learn.
# A seed whose first batch has a task that some rollouts solve and some do not.
_BUNDLED = (
    "experiment=ablation/outcome_only",
    "seed=3",
    "evaluation=none",
    "rollout.tasks_per_step=8",
    "rollout.rollouts_per_task=8",
    "trainer.max_steps=2",
    "quiet=true",
)


def test_a_run_on_two_processes_plays_and_learns_what_one_does(tmp_path: Path) -> None:
    """`python train.py` with rollouts: rank 0 plays, both train, one folder is written."""
    app.train(compose_config(*_BUNDLED, f"paths.output_dir={tmp_path / 'one'}"))
    process = start_training(
        *_BUNDLED,
        f"paths.output_dir={tmp_path / 'two'}",
        "trainer.devices=2",
        env={"STANDALONE_PORT": str(rendezvous_port())},
    )
    try:
        printed, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise
    assert process.returncode == 0, printed
    one, two = only_run(tmp_path / "one"), only_run(tmp_path / "two")
    assert [path.name for path in complete_checkpoints(two)] == ["step_000002"]
    assert _episodes(one) == _episodes(two)
    norms = [[norm for _, norm in scalars(run)["loss/grad_norm"]] for run in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert max(norms[1]) > 0.0
    final_one, final_two = (load_file(run / "final_model/model.safetensors") for run in (one, two))
    assert final_one.keys() == final_two.keys()
    # Two AdamW steps at up to 4e-4 divide near-zero gradients by their own size, so the rounding of
    # another summation order shows at a small share of the learning rate.
    assert max((final_one[k] - final_two[k]).abs().max().item() for k in final_one) <= 1e-5


def _episodes(run: Path) -> list[tuple[object, ...]]:
    """What was played and what it earned, in slot order."""
    return [
        (name, slot["task_id"], slot["task_reward"], [turn["token_ids"] for turn in slot["turns"]])
        for name, slots in trajectories(run).items()
        for slot in slots
    ]
