"""Whether a run that is killed at random moments ends as one that never was.

Run: `python benchmarks/resume.py` (20 moments, about half an hour on two cores), or fewer with
`--moments 3`. Each moment: start the run anew, `kill -9` its whole process group after a random
time, go on with `ckpt_path=last`, kill again after another random time, go on to the end. What the
run leaves (trajectories, pool, held-out results, TensorBoard points, weights, optimizer, curriculum
with its generators) is compared with an unbroken run, durations apart. Prints the share of equal
ones and exits with 1 unless all are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from arise.runs.folder import complete_checkpoints
from arise.runs.records import read_records
from arise.tasks.shellworld.corpus import write_corpus

ROOT = Path(__file__).parents[1]
STEPS = 12
running: list[subprocess.Popen[bytes]] = []
SETTINGS = (
    "experiment=arise",
    f"trainer.max_steps={STEPS}",
    "rubrics.update_interval=2",
    "rollout.tasks_per_step=4",
    "rollout.rollouts_per_task=4",
    "datamodule=folder",
    "evaluation.eval_interval=4",
    "callbacks.checkpoint.every_steps=2",
    # A limit on wall-clock time that strikes on a busy machine is no fault of the resume.
    "harness.command_timeout_s=3600",
    "rollout.agent_timeout_s=36000",
    "environment.start_timeout_s=3600",
)


def patient_corpus(folder: Path, split: str, count: int) -> str:
    """Tasks of the bundled suite without time limits that a busy machine could hit."""
    corpus = write_corpus(folder=str(folder), split=split, count=count, seed=1, mix="conjunctive")
    for file in Path(corpus).rglob("task.toml"):
        text = re.sub(r"timeout_sec = .*", "timeout_sec = 36000.0", file.read_text())
        file.write_text(text)
    return str(corpus)


def start(output_dir: Path, *overrides: str) -> subprocess.Popen[bytes]:
    """The run in a process group of its own, silent."""
    process = subprocess.Popen(
        [sys.executable, "train.py", *SETTINGS, f"paths.output_dir={output_dir}", *overrides],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=(output_dir / "errors.txt").open("ab"),
        start_new_session=True,
    )
    running.append(process)
    return process


def run_to_end(output_dir: Path, *overrides: str) -> float:
    """Seconds that the run took.

    Raises:
        RuntimeError: It failed; its messages are in `errors.txt`.
    """
    started = time.perf_counter()
    if start(output_dir, *overrides).wait() != 0:
        raise RuntimeError((output_dir / "errors.txt").read_text(errors="replace")[-2000:])
    return time.perf_counter() - started


def kill_after(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Kill the process group then; says where the run was."""
    try:
        process.wait(timeout=seconds)
        return "had ended"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"killed after {seconds:.1f} s"


def newest_run(output_dir: Path) -> Path | None:
    return max(output_dir.glob("arise/*"), default=None)


def goes_on(output_dir: Path) -> tuple[str, ...]:
    """`ckpt_path=last` if there is anything to go on from; else the run starts again."""
    run = newest_run(output_dir)
    return ("ckpt_path=last",) if run and complete_checkpoints(run) else ()


def interrupted(output_dir: Path, rng: random.Random, duration_s: float, *overrides: str) -> str:
    """A run with two deaths at random moments; where they were."""
    first = kill_after(start(output_dir, *overrides), rng.uniform(0.0, duration_s))
    arguments = (*overrides, *goes_on(output_dir))
    second = kill_after(start(output_dir, *arguments), rng.uniform(0.0, duration_s))
    run_to_end(output_dir, *overrides, *goes_on(output_dir))
    return f"{first}, then {second}"


def tensors_of(checkpoint: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """Weights and optimizer moments by flat name."""
    file = scratch / "full.pt"
    dcp_to_torch_save(checkpoint, file)
    flat: dict[str, torch.Tensor] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(f"{prefix}/{key}", value)
        elif isinstance(node, torch.Tensor):
            flat[prefix] = node

    walk("", torch.load(file, weights_only=False))
    return flat


def remains(run: Path, scratch: Path) -> dict[str, Any]:
    """All that a run leaves, comparable: durations and memory left out."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    meta = torch.load(complete_checkpoints(run)[-1] / "meta.pt", weights_only=True)
    return {
        "trajectories": [
            {key: value for key, value in record.items() if key != "durations_s"}
            for path in sorted((run / "trajectories").glob("*.gz"))
            for record in read_records(path)
        ],
        "pool": (run / "pool.jsonl").read_text(),
        "held-out": (run / "evaluations.jsonl").read_text(),
        "points": {
            tag: [(point.step, point.value) for point in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
            if not tag.endswith("_s") and not tag.startswith("system/")
        },
        "curriculum": meta["TaskDataModule"],
        "weights": {
            name: tensor.numpy().tobytes()
            for name, tensor in tensors_of(complete_checkpoints(run)[-1], scratch).items()
        },
    }


def kill_leftovers() -> None:
    """No run outlives the benchmark, however that ends."""
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def first_difference(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """Where the first record differs, and in what."""
    for one, two in zip(expected, found, strict=False):
        keys = [key for key in one.keys() | two.keys() if one.get(key) != two.get(key)]
        if keys:
            key = min(keys)
            place = f"iteration {one['iteration']}, {one['task_id']}/{one['rollout']}"
            values = f"{str(one.get(key))[:300]} -> {str(two.get(key))[:300]}"
            return f"   first at {place}: {', '.join(sorted(keys))}; {key}: {values}"
    return f"   {len(expected)} records, then {len(found)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", help="further settings, as of train.py")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    num_equal = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        overrides = (
            f"datamodule.corpus={patient_corpus(folder, 'train', 24)}",
            f"evaluation.corpus={patient_corpus(folder, 'heldout', 4)}",
            *options.overrides,
        )
        straight = folder / "straight"
        straight.mkdir()
        duration_s = run_to_end(straight, *overrides)
        expected = remains(newest_run(straight) or straight, folder)
        print(f"unbroken run: {duration_s:.0f} s", flush=True)
        for number in range(1, options.moments + 1):
            output_dir = folder / f"run{number}"
            output_dir.mkdir()
            told = interrupted(output_dir, rng, duration_s, *overrides)
            found = remains(newest_run(output_dir) or output_dir, folder)
            different = [part for part in expected if found[part] != expected[part]]
            num_equal += not different
            verdict = f"DIFFERENT: {', '.join(different)}" if different else "equal, bit for bit"
            print(f"{number}. {told}: {verdict}", flush=True)
            if "trajectories" in different:
                print(first_difference(expected["trajectories"], found["trajectories"]))
    print(json.dumps({"moments": options.moments, "equal": num_equal}))
    return 0 if num_equal == options.moments else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        sys.exit(main())
    finally:
        kill_leftovers()
