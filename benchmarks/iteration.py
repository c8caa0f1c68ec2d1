"""Seconds of one training iteration by phase, as shares of the whole, and peak memory.

    python benchmarks/iteration.py                       # the bundled policy and suite, 64 episodes
    python benchmarks/iteration.py experiment=ablation/outcome_only trainer.max_steps=20

Arguments are overrides of `train.py`. The first two iterations warm up and are left out.
"""

from __future__ import annotations

import csv
import resource
import statistics
import sys
import tempfile
from pathlib import Path

from hydra import compose, initialize_config_dir

from arise import app
from arise.config import register_schemas

ROOT = Path(__file__).parents[1]
DEFAULTS = ("evaluation=none", "logger=csv", "quiet=true", "trainer.max_steps=12")
WARM_UP = 2


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        register_schemas()
        given = sys.argv[1:] or ["experiment=arise"]
        with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
            cfg = compose("train", [*DEFAULTS, *given, f"paths.output_dir={scratch}/out"])
        app.train(cfg)
        (file,) = Path(scratch).rglob("metrics.csv")
        with file.open() as lines:
            rows = list(csv.DictReader(lines))[WARM_UP:]
    episodes = cfg.rollout.tasks_per_step * cfg.rollout.rollouts_per_task
    whole = statistics.median(float(row["time/iteration_s"]) for row in rows)
    print(f"{cfg.model.name}: {episodes} episodes an iteration, {len(rows)} iterations, medians")
    for name in ("iteration", "rollout", "train", "sync"):
        seconds = statistics.median(float(row[f"time/{name}_s"]) for row in rows)
        print(f"  {name:<10} {seconds:7.2f} s  {seconds / whole:6.1%}")
    for name in sorted(key for key in rows[0] if key.startswith("time/episode_")):
        seconds = statistics.median(float(row[name]) for row in rows)
        print(f"  {name.removeprefix('time/'):<18} {seconds:7.2f} s (mean of an episode)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"  peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
