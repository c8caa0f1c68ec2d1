"""Runs of the learning step that several processes must do like one.

A program for torchrun: it trains the cases of so many processes, and rank 0 writes what came out;
see `tests/integration/test_parallelism.py`.
"""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import toys
from learning import Rows, Trained, make_rows, train

# Rows that a boundary between two shares cuts; micro-batches of odd and even lengths; fewer
# micro-batches on one side.
STEPS: list[Rows] = [
    make_rows([50, 13, 33, 7], seed=1),
    make_rows([30, 5, 20], seed=2),
]


@dataclass(frozen=True)
class Case:
    """How a model is trained."""

    model: Any
    tensor_parallel: int = 1
    sequence_parallel: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def train(self, devices: int, *, steps: list[Rows] = STEPS, **more: Any) -> Trained:
        """On one process, parallelism is left out."""
        parallel = {
            "tensor_parallel": self.tensor_parallel,
            "sequence_parallel": self.sequence_parallel,
        }
        return train(
            steps,
            devices=devices,
            loader=toys.Toy(self.model),
            max_grad_norm=0.05,
            optimizer=functools.partial(torch.optim.AdamW, lr=2e-4, weight_decay=0.0),
            **(parallel if devices > 1 else {}),
            **self.options,
            **more,
        )


_odd = functools.partial(toys.llama, vocab_size=263)
_long: dict[str, Any] = {"activation_checkpointing": True, "cpu_offload": "activations"}

CASES = {
    "llama_tensor": Case(model=toys.llama, tensor_parallel=2),
    "llama_odd_vocabulary_tensor": Case(model=_odd, tensor_parallel=2),
    "qwen3_tensor": Case(model=toys.qwen3, tensor_parallel=2, options=_long),
    "hybrid_tensor": Case(model=toys.qwen3_5, tensor_parallel=2),
    "moe_tensor": Case(model=toys.qwen3_moe, tensor_parallel=2),
    "llama_sequence": Case(model=toys.llama, sequence_parallel=2),
    "qwen3_sequence": Case(model=toys.qwen3, sequence_parallel=2, options=_long),
    "gpt2_sequence": Case(model=toys.gpt2, sequence_parallel=2),
    "moe_sequence": Case(model=toys.qwen3_moe, sequence_parallel=2),
    "hybrid_sharded": Case(model=toys.qwen3_5, options={"cpu_offload": "weights"}),
    "moe_sharded": Case(model=toys.qwen3_moe),
}


# Two dimensions at once.
CASES_OF_FOUR = {
    "qwen3_replicas_tensor": Case(model=toys.qwen3, tensor_parallel=2),
    "hybrid_replicas_tensor": Case(model=toys.qwen3_5, tensor_parallel=2),
    "moe_replicas_tensor": Case(model=toys.qwen3_moe, tensor_parallel=2),
    "llama_replicas_sequence": Case(model=toys.llama, sequence_parallel=2),
    "qwen3_sequence_tensor": Case(
        model=toys.qwen3, sequence_parallel=2, tensor_parallel=2, options=_long
    ),
}

# Saved by one process and loaded by two, and the other way round.
RESUMED = "qwen3_tensor"


def save_first_step(devices: int, folder: Path) -> None:
    CASES[RESUMED].train(devices, steps=STEPS[:1], checkpoint=folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--processes", type=int, required=True)
    args = parser.parse_args()
    cases = CASES if args.processes == 2 else CASES_OF_FOUR
    for name, case in cases.items():
        _write(args.folder / f"{name}.pt", case.train(args.processes))
    if RESUMED in cases:
        save_first_step(2, args.folder / "by_two")
        resumed = CASES[RESUMED].train(2, resumed=args.folder / "by_one")
        _write(args.folder / "resumed.pt", resumed)
    distributed.destroy_process_group()


def _write(path: Path, trained: Trained) -> None:
    result = (trained.weights, trained.metrics, trained.log_ratios)
    if trained.trainer.is_global_zero:
        torch.save(result, path)


if __name__ == "__main__":
    main()
