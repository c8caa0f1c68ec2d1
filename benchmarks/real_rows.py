"""Rows to train on that were really played: one iteration of the bundled suite, or a run's record.

Not a benchmark: what `packing.py` and `train_step.py` train on.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from arise import app
from arise.algorithms.packing import WeightedRow
from arise.config import register_schemas
from arise.runs.records import read_records
from arise.types import FinishReason, Trajectory, Turn

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRow:
    """A row, and where it comes from.

    Attributes:
        group: Number of its task in the iteration.
        reward: Of its trajectory, after Eq. 17.
        weighted: Tokens, and the trajectory's advantage.
    """

    group: int
    reward: float
    weighted: WeightedRow


def composed(*overrides: str) -> DictConfig:
    """The configuration of `python train.py experiment=ablation/outcome_only ...`."""
    register_schemas()
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
        return compose("train", ["experiment=ablation/outcome_only", *overrides])


def play(*overrides: str) -> list[PlayedRow]:
    """Play one iteration with the real engine, sandboxes and verifier."""
    with tempfile.TemporaryDirectory() as scratch:
        fixed = ("evaluation=none", "quiet=true", "trainer.max_steps=1")
        app.train(composed(*overrides, *fixed, f"paths.output_dir={scratch}"))
        (file,) = Path(scratch).rglob("step_000001.jsonl.gz")
        return read(file)


def read(file: Path) -> list[PlayedRow]:
    """Rows of a run's `trajectories/step_*.jsonl.gz`."""
    rows: list[PlayedRow] = []
    groups: dict[str, int] = {}
    for record in read_records(file):
        if record.get("advantage") is None:
            continue
        group = groups.setdefault(record["task_id"], len(groups))
        rows += [
            PlayedRow(
                group=group,
                reward=record["shaped_reward"],
                weighted=WeightedRow(row=row, advantage=record["advantage"]),
            )
            for row in _trajectory(record).rows
        ]
    return rows


def _trajectory(record: dict[str, Any]) -> Trajectory:
    turns = tuple(
        Turn(
            prompt_token_ids=tuple(turn["prompt_token_ids"]),
            token_ids=tuple(turn["token_ids"]),
            logprobs=tuple(float("nan") if x is None else x for x in turn["logprobs"]),
            policy_versions=tuple(turn["policy_versions"]),
            text=turn["text"],
            starts_row=turn["starts_row"],
        )
        for turn in record["turns"]
    )
    return Trajectory(
        task_id=record["task_id"],
        rollout=record["rollout"],
        turns=turns,
        finish_reason=FinishReason(record["finish_reason"]),
        task_reward=record["task_reward"],
    )
