"""What ARISE costs on top of outcome-only: with the offline judge and with one that takes a second.

    python benchmarks/overhead.py            # four blocks of 8 iterations of each kind
    python benchmarks/overhead.py 3 10       # three times there and back, blocks of 10

The kinds take turns, there and back (A B C C B A ...). Each block is a process of its own that
starts from the same policy and, for ARISE, with the recorded pool, so that there is something to
judge from the first iteration. The slow judge answers as the offline one does, one second later;
its requests overlap with episodes that still run. The first two iterations of a block warm up.
The aim is a ratio of at most 1.05 (the paper: 17.14 over 16.46 minutes, 1.042).
"""

from __future__ import annotations

import asyncio
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from arise.llm.chat import ChatRequest, ChatResponse
from arise.tasks.shellworld.rules import RulesModel

ROOT = Path(__file__).parents[1]
DELAY_S = 1.0
WARM_UP = 2
POOL = "rubrics.pool_path=arise.tasks.shellworld:pools/recorded.jsonl"
KINDS = {
    "outcome-only": ("experiment=ablation/outcome_only",),
    "ARISE, offline judge": ("experiment=arise", POOL),
    "ARISE, judge of 1 s": ("experiment=arise", POOL, "judge._target_=overhead.SlowRules"),
}


class SlowRules(RulesModel):
    """The offline stand-in behind a network and a model that take their time."""

    name = "slow rules"

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer after a second."""
        await asyncio.sleep(DELAY_S)
        return await super().complete(request)


def train_block(kind: str, num_steps: int) -> dict[str, list[float]]:
    """Train in this process; seconds by phase of each iteration after the warm-up."""
    from hydra import compose, initialize_config_dir

    from arise import app
    from arise.config import register_schemas

    register_schemas()
    with tempfile.TemporaryDirectory() as scratch:
        with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
            cfg = compose(
                "train",
                [
                    *KINDS[kind],
                    "evaluation=none",
                    "logger=csv",
                    "quiet=true",
                    f"trainer.max_steps={num_steps + WARM_UP}",
                    f"callbacks.checkpoint.every_steps={num_steps + WARM_UP}",
                    f"paths.output_dir={scratch}/out",
                ],
            )
        app.train(cfg)
        (file,) = Path(scratch).rglob("metrics.csv")
        with file.open() as lines:
            rows = list(csv.DictReader(lines))[WARM_UP:]
    phases = ("iteration", "rollout", "train", "sync")
    return {name: [float(row[f"time/{name}_s"]) for row in rows] for name in phases}


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--block"]:
        print(json.dumps(train_block(arguments[1], int(arguments[2]))))
        return
    num_rounds, num_steps = (*map(int, arguments), *(2, 8)[len(arguments) :])
    order = [*KINDS, *reversed(KINDS)] * num_rounds
    blocks: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in KINDS}
    for number, kind in enumerate(order, start=1):
        print(f"block {number}/{len(order)}: {kind}", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--block", kind, str(num_steps)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"{kind} failed:\n{result.stderr}")
        blocks[kind].append(json.loads(result.stdout.splitlines()[-1]))
    base = [statistics.fmean(block["iteration"]) for block in blocks["outcome-only"]]
    print(f"seconds of an iteration, {len(base)} blocks of {num_steps} iterations for each kind")
    for kind, own in blocks.items():
        means = [statistics.fmean(block["iteration"]) for block in own]
        # Block n of each kind stands as far from the middle of its round as the others' do.
        ratios = [mean / reference for mean, reference in zip(means, base, strict=True)]
        phases = "  ".join(
            f"{name} {statistics.fmean(s for block in own for s in block[name]):.2f}"
            for name in ("rollout", "train", "sync")
        )
        print(
            f"  {kind:<21} {statistics.fmean(means):6.2f} s  ratio "
            f"{statistics.fmean(means) / statistics.fmean(base):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f})  {phases}"
        )


if __name__ == "__main__":
    main()
