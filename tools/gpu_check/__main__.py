"""What has to be seen on a GPU once: `make gpu-check`, at most eight minutes on one of 80 GB.

It trains a random model of 1.7 billion parameters (Qwen3's shape) on 32,768 tokens a step, and
compares the kernels that only a GPU runs with plain computations. It prints a table for
docs/results.md. A check that fails does not stop the others; the exit status tells.

`--cpu` runs the same code with everything tiny, to see that it works.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from kernels import check_attention, check_logprobs
from scale import CPU, GPU, Scale, Table
from torch import distributed
from training import check_engine, check_step


def check_training(scale: Scale, table: Table) -> None:
    """Steps, and the engine with the weights they made."""
    check_engine(scale, table, check_step(scale, table, cpu_offload="none"))


def check_offloading(scale: Scale, table: Table) -> None:
    """The same steps with weights and activations in the host's memory."""
    check_step(scale, table, cpu_offload="both")


CHECKS: dict[str, Callable[[Scale, Table], None]] = {
    "attention": check_attention,
    "log-probabilities": check_logprobs,
    "training": check_training,
    "offloading": check_offloading,
}


def main() -> int:
    """Run the checks; 0 if all are good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="everything tiny, without a GPU")
    args = parser.parse_args()
    if not args.cpu and not torch.cuda.is_available():
        print("there is no CUDA device; --cpu runs the same code with everything tiny")
        return 2
    scale = CPU if args.cpu else GPU
    began = time.perf_counter()
    table = Table()
    for name, check in CHECKS.items():
        try:
            check(scale, table)
        except Exception as error:
            table.fail(name, error)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        if not args.cpu:
            torch.cuda.empty_cache()
    device = "CPU, tiny sizes" if args.cpu else torch.cuda.get_device_name()
    seconds = time.perf_counter() - began
    print(f"\n{device}, torch {torch.__version__}, {seconds:.0f} s\n")
    print("\n".join(["| check | value | verdict |", "|---|---|---|", *table.lines]))
    return int(table.num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
