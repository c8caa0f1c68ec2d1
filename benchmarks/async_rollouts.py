"""Throughput of asynchronous rollouts at η = 0, 1, 2, 4 for three tails, beside an analytic bound.

    python benchmarks/async_rollouts.py              # about 20 minutes, most of them idle
    python benchmarks/async_rollouts.py --steps 40 --rate 100 --tails 1.0

Engine and sandboxes are stubs; stream, orchestrator, packing, loss, optimizer and weights are real.
The engine answers a call after (length / rate) seconds; lengths are log-normal with mean `--tokens`
and σ from `--tails`, cut at the context, drawn from decks of 256 so that eight steps see the whole
tail: `--steps` should be a multiple of eight.
Each (σ, η) is a process of its own, with the same B, G, number of steps and C = B · G places.

**The bound.** X is the time of one episode, F(x) = P(X ≤ x)^G the distribution of a group's, T the
time of a step, t its part in which the trainer does not wait (measured).

- η = 0: a step is all of its B · G episodes and then the trainer: T = E[max of B · G X] + t. This
  is not a bound but the mean itself.
- η ≥ 1: a group that begins at the start of a step is taken m steps later if it takes less than
  (m + 1) T − t, and is dropped if it takes more than (η + 1) T − t. Then n groups begin in each
  step, and the following must hold; the bound is the smallest T that does all three.
  1. *Trainer*: T ≥ t.
  2. *Groups*: B are trained, n · F((η + 1) T − t) = B, and those of earlier steps that are not
     done keep their place, n · Σ_{j=0..η} (1 − F(j T − t)) ≤ (η + 1) · B, with F = 0 below 0.
  3. *Places*: an episode keeps its place until it ends or is dropped: n · G · E[min(X, (η + 1) T)]
     ≤ C · T.

It is a bound on the mean rate of what is trained: batches are whole, so a real step also waits for
its B-th group, and its engine has idle places when nothing may begin. A run of few steps may lie
above by chance. AReaL reports up to 2.77 times the throughput of a synchronous system (arXiv
2505.24298); its bottleneck is another mixture of tails, trainer and engine, so the figures stand
side by side and are not the same quantity.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from arise.environments.base import Environment, EnvironmentFactory, ExecResult
from arise.errors import InferenceError
from arise.inference.base import Completion, Engine, GenerationRequest, WeightReport
from arise.types import Task

ROOT = Path(__file__).parents[1]
ETAS = (0, 1, 2, 4)
B, G = 8, 4
CONTEXT = 2048
MOST_TOKENS = 1900
WARM_UP = 8
STRATA = 256
SETTINGS = "ARISE_ASYNC_BENCHMARK"
AREAL = 2.77


def lengths(sigma: float, mean: float, quantiles: Any) -> Any:
    """Tokens at the given quantiles of the log-normal with this mean, cut to [1, MOST_TOKENS]."""
    median = mean / math.exp(sigma**2 / 2)
    return np.clip(np.rint(median * np.exp(sigma * ndtri(quantiles))), 1, MOST_TOKENS)


class RateEngine(Engine):
    """Answers each call after the time that its length takes; tokens have their time's version."""

    is_concurrent = True

    def __init__(self, *, max_context_tokens: int, **_: Any) -> None:
        settings = json.loads(os.environ[SETTINGS])
        self.max_context_tokens = max_context_tokens
        self._rate = settings["rate"]
        self._quantiles = (np.arange(STRATA) + 0.5) / STRATA
        self._lengths = lengths(settings["sigma"], settings["tokens"], self._quantiles)
        self._chance = random.Random(5)
        self._deck: list[int] = []
        self._log: list[tuple[float, int]] = []

    @property
    def dtype(self) -> None:
        """Weights are not held."""
        return None

    async def start(self) -> None:
        """Nothing to bring up."""

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        """Answer all at the same time."""
        return list(await asyncio.gather(*map(self._answer, requests)))

    async def _answer(self, request: GenerationRequest) -> Completion:
        if request.sampling.max_tokens < 100:  # the probe after a push of weights
            count = request.sampling.max_tokens
        else:
            if not self._deck:
                self._deck = self._lengths.astype(int).tolist()
                self._chance.shuffle(self._deck)
            count = self._deck.pop()
        begin = time.perf_counter()
        await asyncio.sleep(count / self._rate)
        return Completion(
            token_ids=(97,) * count,
            logprobs=(-5.56,) * count,
            policy_versions=self._versions(begin, count),
            finish_reason="stop",
        )

    def _versions(self, begin: float, count: int) -> tuple[int, ...]:
        """The version at the time of each token."""
        versions = [self._log[0][1]] * count
        for changed, version in self._log:
            first = max(0, math.ceil((changed - begin) * self._rate))
            versions[first:] = [version] * max(0, count - first)
        return tuple(versions)

    async def release(self, session: tuple[int, int]) -> None:
        """Nothing is kept."""

    async def load_weights(self, weights: Mapping[str, Any], *, version: int) -> WeightReport:
        """Take the version."""
        from arise.inference.weights import fingerprints

        self._log = [*self._log[-16:], (time.perf_counter(), version)]
        return WeightReport(version=version, fingerprints=fingerprints(weights))

    async def rest(self) -> None:
        """Nothing to leave."""

    async def stop(self) -> None:
        """Nothing to shut down."""


class NoMachine(Environment):
    """Takes no time; a random half of the episodes passes, so that there is something to learn."""

    async def start(self) -> None:
        """Nothing to start."""

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        """Nothing happens."""
        return ExecResult(exit_code=0, output="")

    async def grade(
        self, tests: Path | Sequence[Path], *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        """Pass or fail."""
        return {"reward.json": None, "reward.txt": random.choice((b"0", b"1")), "output": b""}

    async def stop(self) -> None:
        """Nothing to remove."""


class NoMachines(EnvironmentFactory):
    """Makes machines out of nothing."""

    def __init__(self, **_: Any) -> None:
        pass

    def check(self) -> None:
        """It always works."""

    def unsupported(self, task: Task) -> str | None:
        """Every task is fine."""
        return None

    def create(self, task: Task, *, name: str) -> Environment:
        """A machine."""
        return NoMachine()

    def close(self) -> None:
        """Nothing to release."""


def block(eta: int, num_steps: int) -> dict[str, Any]:
    """Train in this process; means over the steps after the warm-up."""
    from hydra import compose, initialize_config_dir

    from arise import app
    from arise.config import register_schemas
    from arise.runs.records import read_records

    register_schemas()
    with tempfile.TemporaryDirectory() as scratch:
        with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
            cfg = compose(
                "train",
                [
                    *("experiment=ablation/outcome_only", "debug=tiny", "logger=csv", "quiet=true"),
                    "engine._target_=async_rollouts.RateEngine",
                    "environment._target_=async_rollouts.NoMachines",
                    *(f"rollout.tasks_per_step={B}", f"rollout.rollouts_per_task={G}"),
                    *(f"rollout.context_tokens={CONTEXT}", "rollout.deterministic=false"),
                    *(f"rollout.max_staleness={eta}", "algorithm.max_initial_ratio_error=null"),
                    *("harness.max_turns=1", f"harness.max_output_tokens={MOST_TOKENS}"),
                    f"trainer.max_steps={num_steps + WARM_UP}",
                    f"callbacks.checkpoint.every_steps={num_steps + WARM_UP}",
                    f"paths.output_dir={scratch}/out",
                ],
            )
        app.train(cfg)
        (file,) = Path(scratch).rglob("metrics.csv")
        with file.open() as lines:
            rows = list(csv.DictReader(lines))[WARM_UP:]
        histogram: Counter[int] = Counter()
        for path in sorted(Path(scratch).rglob("step_*.jsonl.gz"))[WARM_UP:]:
            for record in read_records(path):
                for turn in record.get("turns", ()):
                    histogram.update(record["iteration"] - v for v in turn["policy_versions"])

    def mean(name: str, default: str = "") -> float:
        return statistics.fmean(float(row.get(name) or row[default]) for row in rows)

    total = sum(histogram.values())
    return {
        "step_s": mean("time/iteration_s"),
        "wait_s": mean("time/wait_s", "time/rollout_s"),
        "dropped": float(rows[-1].get("staleness/dropped_groups") or 0)
        / float(rows[-1].get("staleness/started_groups") or 1),
        "staleness": {age: histogram[age] / total for age in sorted(histogram)},
    }


def bound_s(eta: int, times: Any, trainer_s: float) -> float:
    """The least mean time of a step; see the top of the file.

    Args:
        eta: η.
        times: Seconds of an episode at equally spaced quantiles, ascending.
        trainer_s: t.
    """
    count = len(times)

    def group_cdf(x: float) -> float:
        return float(np.searchsorted(times, x, side="right") / count) ** G

    if eta == 0:
        # P(max ≤ x) = P(X ≤ x)^(B·G): each quantile's weight is the difference of its powers.
        weights = np.diff((np.arange(count + 1) / count) ** (B * G))
        return float(weights @ times) + trainer_s

    def holds(step_s: float) -> bool:
        done = group_cdf((eta + 1) * step_s - trainer_s)
        if done == 0:
            return False
        begun = B / done
        still = sum(1 - group_cdf(j * step_s - trainer_s) for j in range(eta + 1))
        busy = float(np.minimum(times, (eta + 1) * step_s).mean())
        return begun * still <= (eta + 1) * B and begun * G * busy <= B * G * step_s

    low, high = trainer_s, float(times[-1]) + trainer_s
    if holds(low):
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def main() -> None:
    if sys.argv[1:2] == ["--block"]:
        print(json.dumps(block(int(sys.argv[2]), int(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens per second of an episode")
    parser.add_argument("--tokens", type=float, default=100.0, help="mean length")
    parser.add_argument("--tails", type=float, nargs="+", default=[0.5, 1.0, 1.5])
    args = parser.parse_args()
    print(f"B = {B}, G = {G}, {B * G} places, {args.steps} steps, {args.rate:g} tokens/s")
    for sigma in args.tails:
        quantiles = (np.arange(20_000) + 0.5) / 20_000
        times = lengths(sigma, args.tokens, quantiles) / args.rate
        settings = {"rate": args.rate, "tokens": args.tokens, "sigma": sigma}
        environment = {
            **os.environ,
            SETTINGS: json.dumps(settings),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")]),
        }
        print(f"σ = {sigma:g}: mean {times.mean():.2f} s, longest {times[-1]:.1f} s an episode")
        base = None
        for eta in ETAS:
            result = subprocess.run(
                [sys.executable, __file__, "--block", str(eta), str(args.steps)],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if result.returncode != 0:
                sys.exit(f"η = {eta} failed:\n{result.stderr}")
            found = json.loads(result.stdout.splitlines()[-1])
            base = base or found["step_s"]
            least = bound_s(eta, times, found["step_s"] - found["wait_s"])
            ages = " ".join(f"{age}: {share:.0%}" for age, share in found["staleness"].items())
            print(
                f"  η = {eta}: {B / found['step_s']:5.2f} groups/s, {least / found['step_s']:4.2f} "
                f"of the bound {B / least:5.2f}; {base / found['step_s']:4.2f} times η = 0 "
                f"(AReaL: {AREAL}); bubble {found['wait_s'] / found['step_s']:4.0%}, dropped "
                f"{found['dropped']:4.1%}; staleness {ages}",
                flush=True,
            )


if __name__ == "__main__":
    main()
