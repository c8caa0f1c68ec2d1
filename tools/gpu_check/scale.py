"""Sizes of the checks, their table, and the device's clock and memory."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass, field

import torch
from torch import Tensor

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of the checks, and how far two computations may be apart."""

    device: str
    dtype: str
    model: dict[str, int]
    vocabulary: int
    row_tokens: tuple[int, ...]
    chunk_tokens: int
    scored_tokens: int
    num_steps: int
    attention_error: float
    logprob_error: float
    engine_gap: float


# bfloat16 keeps 8 bits: products of rounded numbers are off by 2^-8 of the largest.
GPU = Scale(
    device="cuda",
    dtype="bfloat16",
    model={
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    vocabulary=151_936,
    row_tokens=(16_384, 9_000, 5_000, 2_384),
    chunk_tokens=1024,
    scored_tokens=4096,
    num_steps=4,
    attention_error=2e-2,
    logprob_error=2e-2,
    engine_gap=5e-2,
)
CPU = Scale(
    device="cpu",
    dtype="float32",
    model={
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    vocabulary=300,
    row_tokens=(60, 33, 20, 7),
    chunk_tokens=16,
    scored_tokens=50,
    num_steps=3,
    attention_error=1e-5,
    logprob_error=1e-5,
    engine_gap=1e-4,
)


@dataclass
class Table:
    """Lines of what was measured; some have a limit."""

    lines: list[str] = field(default_factory=list)
    num_failed: int = 0

    def add(self, name: str, value: float, unit: str = "", *, limit: float | None = None) -> None:
        """A value, and whether it is within its limit."""
        verdict = "–"
        if limit is not None:
            is_good = math.isfinite(value) and value <= limit
            verdict = f"{'ok' if is_good else 'FAILED'} (at most {limit:g})"
            self.num_failed += not is_good
        self.lines.append(f"| {name} | {value:.4g} {unit}| {verdict} |")
        print(self.lines[-1], flush=True)

    def fail(self, name: str, error: Exception) -> None:
        """A check that came to no end."""
        traceback.print_exc()
        self.num_failed += 1
        text = " ".join(str(error).split())[:200].replace("|", "/")
        self.lines.append(f"| {name} | FAILED | {type(error).__name__}: {text} |")


def difference(ours: Tensor, expected: Tensor | None) -> float:
    """Largest difference over the largest expected value."""
    assert expected is not None
    expected = expected.detach().float()
    return float((ours.detach().float() - expected).abs().max() / expected.abs().max())


def now(scale: Scale) -> float:
    """Seconds, once the device has done what it was given."""
    if scale.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def reset_peak(scale: Scale) -> int:
    """Begin to measure; bytes in use now."""
    if scale.device != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak(scale: Scale) -> int:
    """Most bytes in use since."""
    return torch.cuda.max_memory_allocated() if scale.device == "cuda" else 0
