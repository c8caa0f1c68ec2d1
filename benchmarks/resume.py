"""Whether a run that is killed at random moments ends as one that never was.

Run: `python benchmarks/resume.py` (20 moments, ten minutes on two cores), or fewer with
`--moments 4`. A run of 12 iterations is started, its whole process group gets `kill -9` at a random
moment of a random step, it goes on with `ckpt_path=last`, is killed again at another moment, and
goes on to the end; then the next run. What each leaves (trajectories, pool, held-out results,
TensorBoard points, weights, optimizer, curriculum with its generators) is compared with an unbroken
run, durations apart. Prints where the deaths were and exits with 1 unless all runs are equal.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from arise.runs.catalogue import recorded_steps
from arise.runs.folder import checkpoint_step, complete_checkpoints
from arise.runs.records import trajectory_file
from remains import STEPS, WHOLE_METHOD, remains
from runs import start_training, stub_endpoints
from stub_judge import StubJudge, varied_answer

DEATHS_PER_RUN = 2
"""A run of 12 iterations comes in three parts."""

running: list[subprocess.Popen[str]] = []


def start(output_dir: Path, *overrides: str) -> subprocess.Popen[str]:
    """A run in a process group of its own."""
    process = start_training(*overrides, f"paths.output_dir={output_dir}", "quiet=true")
    running.append(process)
    return process


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a run is: seconds to its first record, and from record to record."""

    start_s: float
    step_s: float


def run_to_end(output_dir: Path, *overrides: str) -> None:
    """Run and wait.

    Raises:
        RuntimeError: It failed.
    """
    process = start(output_dir, *overrides)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(output[-2000:])


def pace_of(run: Path, started: float) -> Pace:
    """Measured on a run that nothing broke; the clock is that of the file system."""
    first, last = (record_time(run, step) for step in (1, STEPS))
    return Pace(start_s=first - started, step_s=(last - first) / (STEPS - 1))


def record_time(run: Path, step: int) -> float:
    """When a step was recorded; 0 if it was not."""
    path = trajectory_file(run / "trajectories", step)
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def dies(process: subprocess.Popen[str], output_dir: Path, rng: random.Random, pace: Pace) -> bool:
    """Kill the process group at a random moment of a random step; `False` if the run had ended.

    A moment of the wall clock would on a busy machine nearly always be in the imports.

    Raises:
        RuntimeError: It had failed.
    """
    started = time.time()
    done = newest_checkpoint_step(output_dir)
    step = rng.randint(done, STEPS - 1)
    delay_s = rng.uniform(0.0, pace.step_s if step > done else pace.start_s)
    while step > done and process.poll() is None:
        run = newest_run(output_dir)
        # What an earlier death left beyond its checkpoint does not count.
        if run is not None and record_time(run, step) > started:
            break
        time.sleep(0.005)
    try:
        output, _ = process.communicate(timeout=delay_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True
    if process.returncode != 0:
        raise RuntimeError(output[-2000:])
    return False


def newest_run(output_dir: Path) -> Path | None:
    return max(output_dir.glob("arise/*"), default=None)


def goes_on(output_dir: Path) -> tuple[str, ...]:
    """`ckpt_path=last` if there is anything to go on from; else the run starts again."""
    run = newest_run(output_dir)
    return ("ckpt_path=last",) if run and complete_checkpoints(run) else ()


def newest_checkpoint_step(output_dir: Path) -> int:
    run = newest_run(output_dir)
    checkpoints = complete_checkpoints(run) if run else []
    return checkpoint_step(checkpoints[-1]) if checkpoints else 0


def interrupted(
    output_dir: Path, rng: random.Random, pace: Pace, num_moments: int, *overrides: str
) -> list[str]:
    """A run that is killed at most `num_moments` times; says where each death was."""
    deaths: list[str] = []
    while len(deaths) < num_moments:
        process = start(output_dir, *overrides, *goes_on(output_dir))
        if not dies(process, output_dir, rng, pace):
            return deaths
        run = newest_run(output_dir)
        deaths.append(state_of(run) if run else "before it had a folder")
    run_to_end(output_dir, *overrides, *goes_on(output_dir))
    return deaths


def state_of(run: Path) -> str:
    """How far the disk knows a run."""
    checkpoints = complete_checkpoints(run)
    saving = any((run / "checkpoints").glob(".saving_*"))
    return (
        f"{max(recorded_steps(run), default=0)} steps on disk, "
        f"checkpoint {checkpoint_step(checkpoints[-1]) if checkpoints else 'none'}"
        f"{', in a save' if saving else ''}"
    )


def first_difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Where the first record differs, and in what: a command's output, or what was generated."""
    for name, slots in expected.items():
        for one, two in zip(slots, found.get(name, []), strict=False):
            keys = sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
            if not keys:
                continue
            place = f"{name}, {one['task_id']}/{one['rollout']}"
            for turn, other in zip(one.get("turns", ()), two.get("turns", ()), strict=False):
                names = sorted(key for key in turn if turn[key] != other[key])
                if names:
                    shown = ", ".join(f"{n}: {turn[n]!r:.200} -> {other[n]!r:.200}" for n in names)
                    return f"   first at {place}, action {turn['action']!r}: {shown}"
            return f"   first at {place}: {', '.join(keys)}"
    return f"   {len(expected)} files, then {len(found)}"


def compare(folder: Path, rng: random.Random, num_moments: int, *overrides: str) -> list[bool]:
    """Kill runs until they died `num_moments` times in all; whether each ended as the unbroken."""
    started = time.time()
    run_to_end(folder / "straight", *overrides)
    straight = newest_run(folder / "straight")
    assert straight is not None
    pace = pace_of(straight, started)
    expected = remains(straight, folder)
    print(f"unbroken run: {pace.start_s:.1f} s to the first record, {pace.step_s:.2f} s a step")
    is_equal: list[bool] = []
    num_left = num_moments
    while num_left:
        own = folder / str(len(is_equal) + 1)
        deaths = interrupted(own, rng, pace, min(num_left, DEATHS_PER_RUN), *overrides)
        num_left -= len(deaths)
        run = newest_run(own)
        assert run is not None
        found = remains(run, folder)
        different = [part for part in expected if found.get(part) != expected[part]]
        is_equal.append(not different)
        verdict = f"DIFFERENT: {', '.join(different)}" if different else "equal, bit for bit"
        print(f"{own.name}. killed at: {'; '.join(deaths) or 'the end'}: {verdict}", flush=True)
        if "trajectories" in different:
            print(first_difference(expected["trajectories"], found["trajectories"]), flush=True)
    return is_equal


def kill_leftovers() -> None:
    """No run outlives the benchmark, however that ends."""
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", help="further settings, as of train.py")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    # It would tell of every restart.
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name, StubJudge(varied_answer) as stub:
        overrides = (*WHOLE_METHOD, *stub_endpoints(stub.base_url), *options.overrides)
        is_equal = compare(Path(name), rng, options.moments, *overrides)
    result = {"moments": options.moments, "runs": len(is_equal), "equal": sum(is_equal)}
    print(json.dumps(result))
    return 0 if all(is_equal) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        sys.exit(main())
    finally:
        kill_leftovers()
