"""Exact resume: a run that dies and goes on equals one that was never interrupted.

The whole method runs: a pool that lives (the judge behind HTTP gives verdicts of all kinds),
evidence, coverage, held-out evaluation, TensorBoard. The only thing that may differ is time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from arise.rubrics.events import read_events, replay
from arise.runs.folder import checkpoint_step, complete_checkpoints
from arise.runs.pool_story import chosen_tasks, pool_story
from arise.runs.records import record_step
from remains import WHOLE_METHOD, remains
from runs import (
    freeze_when,
    only_run,
    start_training,
    stub_endpoints,
    trajectories,
    wait_for_line,
)
from stub_judge import StubJudge, varied_answer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[str, ...]]:
    with StubJudge(varied_answer) as stub:
        yield stub_endpoints(stub.base_url)


@pytest.fixture(scope="module")
def straight(endpoints: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("straight")
    finish(start_training(*WHOLE_METHOD, *endpoints, f"paths.output_dir={output_dir}"))
    return only_run(output_dir, "arise")


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return output


def steps_recorded(run: Path) -> int:
    return max(map(record_step, (run / "trajectories").glob("step_*")), default=0)


def kill_and_check_orphans(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole group; no sandbox may outlive it."""
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def saving(run: Path, step: int) -> bool:
    """Whether a save of `step` or later has begun and is not complete."""
    return any(
        checkpoint_step(path.with_name(path.name.removeprefix(".saving_"))) >= step
        and any(path.iterdir())
        for path in (run / "checkpoints").glob(".saving_step_*")
    )


def test_K02_K10_G01_killed_three_times_equals_an_unbroken_run(
    straight: Path, endpoints: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = (*WHOLE_METHOD, *endpoints, f"paths.output_dir={tmp_path}")
    rng = random.Random(8)

    # In the middle of rollouts.
    process = start_training(*arguments)
    wait_for_line(process, "step  5/12", timeout_s=600)
    time.sleep(rng.uniform(0.02, 0.15))
    kill_and_check_orphans(process)
    run = only_run(tmp_path, "arise")
    assert [path.name for path in complete_checkpoints(run)] == ["step_000002", "step_000004"]

    # After the optimizer step, before its checkpoint is there.
    process = start_training(*arguments, "ckpt_path=last")

    def stepped() -> bool:
        step = steps_recorded(run)
        return step >= 8 and step % 2 == 0 and not (run / f"checkpoints/step_{step:06d}").exists()

    freeze_when(process, stepped)
    kill_and_check_orphans(process)

    # In the middle of a save.
    process = start_training(*arguments, "ckpt_path=last")
    freeze_when(process, lambda: saving(run, 10))
    newest = complete_checkpoints(run)[-1]
    kill_and_check_orphans(process)
    assert complete_checkpoints(run)[-1] == newest, "an unfinished save shadows nothing"

    output = finish(start_training(*arguments, "ckpt_path=last"))
    assert str(run) in output
    assert f"step {checkpoint_step(newest):>2}/12" not in output, "nothing is done twice"
    assert only_run(tmp_path, "arise") == run
    require_equal(run, straight, tmp_path)


def require_equal(run: Path, other: Path, scratch: Path) -> None:
    """Everything that two runs left is the same, bit for bit, but for durations."""
    found, expected = remains(run, scratch), remains(other, scratch)
    assert found.keys() == expected.keys()
    for part, content in expected.items():
        assert found[part] == content, part
    assert found["checkpoints"] == ["step_000004", "step_000008", "step_000010", "step_000012"]
    assert len(found["tensors of step_000012"]) > 40, "weights and both moments"

    points = found["points"]
    for tag in ("reward/pass_rate", "rubric/mean_reward", "pool/size", "loss/lr", "loss/policy"):
        steps = [step for step, _ in points[tag]]
        assert steps == sorted(set(steps)), f"{tag}: each step once"
    assert [step for step, _ in points["loss/policy"]] == list(range(1, 13))
    assert [step for step, _ in points["evaluation/pass_rate"]] == [0, 4, 8, 12]
    assert not list((run / "checkpoints").glob(".*")), "what a death left is cleaned up"


def test_the_compared_run_has_everything_in_it(straight: Path, tmp_path: Path) -> None:
    """What equals above is not empty: pairs of all kinds, evidence, gradients."""
    story = (straight / "pool.jsonl").read_text()
    for kind in ("created", "activated", "refined", "retired"):
        assert f'"type": "{kind}"' in story, kind
    left = remains(straight, tmp_path)
    events = read_events(straight / "pool.jsonl", key="pool")
    for checkpoint in complete_checkpoints(straight):
        saved = left[f"state of {checkpoint.name}"]["TaskDataModule"]["curriculum"]["pool"]
        told = replay(events, until_step=checkpoint_step(checkpoint))
        assert [pair.to_dict() for pair in told.values()] == saved["pairs"], checkpoint.name
    state = left["state of step_000010"]["TaskDataModule"]
    sampler = state["curriculum"]["sampler"]
    assert sum(map(len, sampler["evidence"]["accumulators"].values())) > 5
    assert any(sampler["coverage"]["tasks_of"].values())
    assert state["curriculum"]["buffer"]["records"] == []
    reasons = {slot["sampled_by"] for slots in trajectories(straight).values() for slot in slots}
    assert reasons >= {"discovery", "adaptive"}
    assert left["tensors of step_000004"] != left["tensors of step_000012"]


def test_the_recorded_verdicts_are_those_that_decided(straight: Path) -> None:
    """What `python -m arise.runs pool` shows as evidence adds up to the numbers of the event."""
    num_checked = 0
    for pair in pool_story(straight, until_step=None, pair_id=None):
        for event in pair["events"]:
            if event["type"] == "created":
                cited = [*event["evidence"]["issues"], *event["evidence"]["contrasts"]]
                assert all(record["diagnostics"] for record in cited)
                continue
            counts = event["evidence"]["tasks"].values()
            assert sum(count.get("pass", 0) for count in counts) == event["num_passes"]
            assert sum(map(applicable, counts)) == event["num_applicable"]
            num_checked += 1
    assert num_checked > 10
    assert {task["sampled_by"] for task in chosen_tasks(straight, 1)} == {"discovery"}


def applicable(counts: dict[str, int]) -> int:
    return counts.get("pass", 0) + counts.get("fail", 0)


def test_interrupt_leaves_a_checkpoint_and_nothing_else(
    straight: Path, endpoints: tuple[str, ...], tmp_path: Path
) -> None:
    folder = f"paths.output_dir={tmp_path}"
    arguments = (*WHOLE_METHOD, *endpoints, folder, "trainer.max_steps=4")
    process = start_training(*arguments, "callbacks.checkpoint.every_steps=99")
    wait_for_line(process, "step 1/4", timeout_s=600)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    run = only_run(tmp_path, "arise")
    (checkpoint,) = complete_checkpoints(run)
    assert 1 <= checkpoint_step(checkpoint) <= 3

    finish(start_training(*arguments, "ckpt_path=last"))
    expected = trajectories(straight)
    assert trajectories(run) == {name: expected[name] for name in sorted(expected)[:4]}
