"""Does the tiny policy learn as much per step from asynchronous rollouts? Paired seeds.

    python benchmarks/staleness_learning.py                         # 5 seeds, 20 steps, η = 0 and 2
    python benchmarks/staleness_learning.py OUT --seeds 8 --steps 60 --eta 4
    python benchmarks/staleness_learning.py OUT rollout.tasks_per_step=4   # overrides of train.py

Each run is a process of its own; one that is there already under OUT
(outputs/staleness_learning by default) is not run again, so the
program may be stopped and started. Two figures of a run: the held-out pass rate of its last policy
and the mean training pass rate of its last quarter of steps. For each it prints the 95 % t interval
over the seeds of η = 0, whether the mean at η lies inside, and the paired difference.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
from pathlib import Path

from arise.study.statistics import compare, estimate

ROOT = Path(__file__).parents[1]
FIGURES = ("held-out pass rate at the end", "training pass rate, last quarter")


def run(out: Path, eta: int, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Train, if that is not done yet, and read the figures."""
    folder = out / f"eta{eta}_seed{seed}"
    finished = folder / "finished"
    if not finished.exists():
        print(f"running η = {eta}, seed {seed}", file=sys.stderr, flush=True)
        command = [
            *(sys.executable, "train.py", "experiment=arise", "logger=csv", "quiet=true"),
            *(f"seed={seed}", f"rollout.max_staleness={eta}", f"trainer.max_steps={args.steps}"),
            *("~evaluation.extra.unseen", f"evaluation.generator.count={args.tasks}"),
            *(f"evaluation.eval_interval={args.steps}", f"paths.output_dir={folder}"),
            *(f"paths.cache_dir={out / 'cache'}", "experiment_name=run", *args.overrides),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            sys.exit(f"η = {eta}, seed {seed} failed:\n{result.stdout}{result.stderr}")
        finished.touch()
    *_, file = sorted(folder.rglob("metrics.csv"))
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    held_out = [float(row["evaluation/pass_rate"]) for row in rows if row["evaluation/pass_rate"]]
    training = [float(row["reward/pass_rate"]) for row in rows if row["reward/pass_rate"]]
    figures = {
        FIGURES[0]: held_out[-1],
        FIGURES[1]: statistics.fmean(training[-max(1, args.steps // 4) :]),
    }
    for name in ("token_mean", "token_max", "mixed_trajectory_share"):
        values = [row.get(f"staleness/{name}") for row in rows]
        figures[name] = statistics.fmean([float(value) for value in values if value] or [0.0])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "outputs/staleness_learning")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eta", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=96, help="held-out tasks")
    args = parser.parse_intermixed_args()
    out = args.out.resolve()
    runs: dict[int, dict[int, dict[str, float]]] = {0: {}, args.eta: {}}
    for seed in range(1, args.seeds + 1):
        for eta, own in runs.items():
            own[seed] = run(out, eta, seed, args)
    stale = list(runs[args.eta].values())
    print(
        f"{args.seeds} seeds, {args.steps} steps; at η = {args.eta} a token is "
        f"{statistics.fmean(one['token_mean'] for one in stale):.2f} steps old on average, "
        f"{max(one['token_max'] for one in stale):.2f} the oldest of a step, and "
        f"{statistics.fmean(one['mixed_trajectory_share'] for one in stale):.0%} of the "
        "trajectories have tokens of several versions"
    )
    for name in FIGURES:
        base = {seed: one[name] for seed, one in runs[0].items()}
        other = {seed: one[name] for seed, one in runs[args.eta].items()}
        interval, mean = estimate(list(base.values())), statistics.fmean(other.values())
        where = "inside" if interval.low <= mean <= interval.high else "OUTSIDE"
        comparison = compare(other, base)
        assert comparison is not None
        print(
            f"{name}: η = 0 {interval.mean:.1%} [{interval.low:.1%}, {interval.high:.1%}], "
            f"η = {args.eta} {mean:.1%}: {where}; paired difference "
            f"{comparison.difference.mean:+.1%} ± {comparison.difference.half_width:.1%} "
            f"(p = {comparison.p_t:.2f})"
        )


if __name__ == "__main__":
    main()
