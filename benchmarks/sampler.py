"""Time and memory of one capability-guided draw, beside a uniform draw of the same size.

Run: `python benchmarks/sampler.py`. Targets on one core: 32 of 1,728 tasks with 67 tags and 64
rubrics in at most 5 ms, 32 of 1,000,000 in at most 100 ms. Exits with 1 if one is missed.
"""

import os
import pickle

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np

from arise.curriculum.base import GroupObservation, Sampler
from arise.curriculum.capability import CapabilitySampler
from arise.curriculum.evidence import CAPABILITIES
from arise.curriculum.uniform import UniformSampler
from arise.types import Outcome, Task

NUM_TAGS, NUM_PAIRS, BATCH, NUM_ROLLOUTS = 67, 64, 32, 8
OUTCOMES = (Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE)
CASES = ((1_728, 150, 5.0), (1_000_000, 150, 100.0))
"""Number of tasks, iterations of history, target in ms."""


class SteerableSampler(CapabilitySampler):
    """A sampler whose ρ can be set, so that a draw from a hardly known task set can be adaptive."""

    forced: float | None = None

    @property
    def discovery_probability(self) -> float:
        """ρ as set, else as the coverage makes it."""
        return super().discovery_probability if self.forced is None else self.forced


def make_tasks(num_tasks: int, rng: np.random.Generator) -> list[Task]:
    num_tags = rng.integers(1, 5, size=num_tasks)
    return [
        Task(
            id=f"task-{i:07d}",
            instruction="",
            path=Path(),
            tests=Path(),
            tags=tuple(f"tag-{t:02d}" for t in rng.choice(NUM_TAGS, size=n, replace=False)),
        )
        for i, n in enumerate(num_tags)
    ]


def observe_batch(
    sampler: Sampler, version: int, tasks: list[Task], rng: np.random.Generator
) -> None:
    groups = []
    for task in tasks:
        codes = rng.integers(0, 3, size=(NUM_ROLLOUTS, NUM_PAIRS))
        outcomes = tuple({i: OUTCOMES[code] for i, code in enumerate(row)} for row in codes)
        groups.append(
            GroupObservation(
                task_id=task.id,
                tags=task.tags,
                num_rollouts=NUM_ROLLOUTS,
                outcomes=outcomes,
                rewards=tuple(float(code) for code in rng.integers(0, 2, size=NUM_ROLLOUTS)),
            )
        )
    sampler.observe(version, groups)


def draw_ms(sampler: Sampler, repeats: int = 30) -> float:
    """Median time of a draw in milliseconds of one core, whatever else the machine does."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        batch = sampler.draw(BATCH)
        times.append(1e3 * (time.thread_time() - start))
        assert len(batch) == BATCH
    return statistics.median(times)


def measure(num_tasks: int, num_iterations: int, target_ms: float) -> bool:
    rng = np.random.default_rng(0)
    tasks = make_tasks(num_tasks, rng)
    tracemalloc.start()
    sampler = SteerableSampler(
        tasks=tasks,
        seed=0,
        quarantine_after=3,
        min_discovery_probability=0.1,
        pair_quota=0.25,
        gamma_obs=0.2,
        gamma_unobs=0.999,
    )
    held_mib = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    for pair_id in range(NUM_PAIRS):
        sampler.add_pair(pair_id, CAPABILITIES[pair_id % len(CAPABILITIES)])
    for version in range(1, num_iterations + 1):
        observe_batch(sampler, version, [s.task for s in sampler.draw(BATCH)], rng)
    tracemalloc.start()
    sampler.draw(BATCH)
    draw_mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    guided_ms = draw_ms(sampler)
    shares = sampler.metrics()
    sampler.forced = 0.0
    adaptive_ms = draw_ms(sampler)
    uniform_ms = draw_ms(UniformSampler(tasks=tasks, seed=0, quarantine_after=3))
    start = time.thread_time()
    state = sampler.state_dict()
    state_ms = 1e3 * (time.thread_time() - start)
    state_mib = len(pickle.dumps(state)) / 2**20
    is_met = max(guided_ms, adaptive_ms) <= target_ms
    print(
        f"{BATCH} of {num_tasks:,} tasks, {NUM_TAGS} tags, {NUM_PAIRS} rubrics, coverage "
        f"{shares['sampler/coverage']:.2f}, adaptive {shares['sampler/share_adaptive']:.0%}: "
        f"{guided_ms:.2f} ms, without discovery {adaptive_ms:.2f} ms (target {target_ms:g} ms, "
        f"{'met' if is_met else 'MISSED'}), uniform {uniform_ms:.2f} ms; memory beside the "
        f"tasks {held_mib:.1f} MiB, in a draw {draw_mib:.1f} MiB more; "
        f"state {state_mib:.1f} MiB in {state_ms:.1f} ms",
        flush=True,
    )
    return is_met


if __name__ == "__main__":
    results = [measure(*case) for case in CASES]
    sys.exit(0 if all(results) else 1)
