"""Helpers for tests of the learning step: rows from nowhere, the real module, the real trainer.

Run as a program it trains on several processes and writes what came out; see
`tests/integration/test_two_processes.py`.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer
from torch import Tensor, distributed

from arise.algorithms.packing import WeightedRow, pack, padded
from arise.modules.distribution import share_rows
from arise.modules.loading import RandomModel
from arise.modules.parallel import ParallelStrategy
from arise.modules.policy import PolicyModule
from arise.types import Iteration, TokenRow

VOCAB = 261

Rows = list[WeightedRow]


def make_row(length: int, advantage: float, *, seed: int, logprob: float = -5.5) -> WeightedRow:
    """Random tokens: a prompt of a third, then generated; log-probabilities near a random model's.

    ln 261 = 5.56, so ω spreads around 1; the model of `make_module` keeps most tokens.
    """
    generator = random.Random(seed)
    prompt = max(1, length // 3)
    return WeightedRow(
        row=TokenRow(
            token_ids=tuple(generator.randrange(VOCAB) for _ in range(length)),
            generated_mask=(False,) * prompt + (True,) * (length - prompt),
            logprobs=(0.0,) * prompt
            + tuple(logprob + generator.uniform(-0.4, 0.4) for _ in range(length - prompt)),
            policy_versions=(-1,) * length,
        ),
        advantage=advantage,
    )


def make_rows(lengths: Sequence[int], *, seed: int = 0, **options: Any) -> Rows:
    """Rows of these lengths with advantages of both signs."""
    return [
        make_row(length, (-1.0) ** n * (0.5 + n / 4), seed=1000 * seed + n, **options)
        for n, length in enumerate(lengths)
    ]


def num_generated(rows: Rows) -> int:
    return sum(sum(weighted.row.generated_mask) for weighted in rows)


def make_module(**changes: Any) -> PolicyModule:
    options: dict[str, Any] = {
        "loader": RandomModel(
            seed=1,
            hidden_size=32,
            num_layers=2,
            num_heads=2,
            intermediate_size=64,
            context_tokens=512,
        ),
        "optimizer": functools.partial(torch.optim.AdamW, lr=5e-4, weight_decay=0.0),
        "warmup_steps": 2,
        "max_grad_norm": 1.0,
        "loss_order": "arise",
        "dual_clip": 3.0,
        "ratio_low": 0.5,
        "ratio_high": 5.0,
        "max_initial_ratio_error": None,
        "temperature": 1.0,
        "compute_dtype": "float32",
        "layout": "auto",
        "chunk_tokens": 16,
        "activation_checkpointing": False,
        "lora": None,
    }
    return PolicyModule(**options | changes)


class _Iterations:
    """A sized stream, like the data module's."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Iteration]:
        return (Iteration(index=index) for index in range(self._count))


@dataclass
class Feed(Callback):
    """Shares out prepared rows where a run would share out rollouts, and keeps the metrics."""

    steps: list[Rows]
    max_tokens: int
    metrics: list[dict[str, float]] = field(default_factory=list)
    log_ratios: list[dict[int, Tensor]] = field(default_factory=list)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Iteration, batch_idx: int
    ) -> None:
        # As a run's probe does after a push: a forward pass without a backward pass.
        probe = padded if pl_module.policy.layout == "rows" else pack
        with torch.no_grad():
            for probed in probe(make_rows([9, 5]), max_tokens=self.max_tokens):
                pl_module.policy(probed)
        rows = self.steps[trainer.global_step] if trainer.is_global_zero else []
        batch.num_generated_tokens = num_generated(rows)
        share_rows(
            batch,
            rows,
            layout=pl_module.policy.layout,
            max_tokens=self.max_tokens,
            num_replica_ranks=pl_module.policy.num_replica_ranks,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Iteration, batch_idx: int
    ) -> None:
        self.metrics.append(batch.metrics)
        self.log_ratios.append(batch.log_ratios)


@dataclass
class Trained:
    """What a run left: full weights; metrics, and log ω by row (on rank 0), by step."""

    module: PolicyModule
    trainer: Trainer
    weights: dict[str, Tensor]
    metrics: list[dict[str, float]]
    log_ratios: list[dict[int, Tensor]]


def train(
    steps: list[Rows],
    *,
    max_tokens: int = 64,
    devices: int = 1,
    tensor_parallel: int = 1,
    sequence_parallel: int = 1,
    checkpoint: Path | None = None,
    resumed: Path | None = None,
    **changes: Any,
) -> Trained:
    """One optimizer step for each entry of `steps`; those that `resumed` has are done already."""
    module = make_module(sequence_parallel=sequence_parallel, **changes)
    feed = Feed(steps=steps, max_tokens=max_tokens)
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=ParallelStrategy(
            sequence_parallel_size=sequence_parallel, tensor_parallel_size=tensor_parallel
        ),
        max_steps=len(steps),
        max_epochs=-1,
        logger=False,
        callbacks=[feed],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    try:
        trainer.fit(module, train_dataloaders=_Iterations(len(steps)), ckpt_path=resumed)
        if checkpoint is not None:
            trainer.save_checkpoint(checkpoint)
        assert module.policy is not None
        weights = module.policy.full_weights()
    finally:
        if devices == 1 and distributed.is_initialized():
            distributed.destroy_process_group()
    return Trained(
        module=module,
        trainer=trainer,
        weights=weights,
        metrics=feed.metrics,
        log_ratios=feed.log_ratios,
    )


# Uneven rows; one row, so that another rank has none; all tokens out of bounds; no row at all;
# three rows on two ranks, some tokens dual-clipped.
STEPS: list[Rows] = [
    make_rows([60, 12, 33, 7, 5, 48, 21], seed=1),
    make_rows([30], seed=2),
    make_rows([20, 9], seed=3, logprob=-20.0),
    [],
    make_rows([11, 40, 6], seed=5, logprob=-6.8),
]


def main() -> None:
    """Train on `STEPS` with so many processes; rank 0 writes weights and metrics."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layout", default="auto")
    args = parser.parse_args()
    # A low bound on the norm, so that every step is clipped.
    trained = train(STEPS, devices=args.devices, layout=args.layout, max_grad_norm=0.05)
    if trained.trainer.is_global_zero:
        torch.save(trained.weights, args.output / "weights.pt")
        torch.save(trained.log_ratios, args.output / "log_ratios.pt")
        (args.output / "metrics.json").write_text(json.dumps(trained.metrics))
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
