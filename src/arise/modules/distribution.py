"""One iteration over several replicas: rows out, sums back.

A replica is one rank, or several that run each micro-batch together (tensor and sequence
parallelism): consecutive ranks, which are given the same rows and come to the same results.

Rank 0 has the rows. Rows are scattered, not broadcast, and every replica gets equally many
micro-batches, because a sharded model communicates in each forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, distributed

from arise.algorithms.losses import LossStatistics
from arise.algorithms.packing import (
    PackedBatch,
    WeightedRow,
    assign_to_ranks,
    filler_batch,
    pack,
    padded,
)
from arise.types import Iteration

_MINIMA = ("ratio_min",)
_MAXIMA = ("ratio_max", "max_abs_log_ratio")
_COUNTS = tuple(field.name for field in fields(LossStatistics) if field.name.startswith("num_"))


def num_ranks() -> int:
    """Processes of this run; 1 outside of a process group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def share_rows(
    iteration: Iteration,
    rows: Sequence[WeightedRow],
    *,
    layout: str,
    max_tokens: int,
    num_replica_ranks: int = 1,
) -> None:
    """Fill `micro_batches` and `num_generated_tokens` of every rank's iteration; collective.

    A rank that gets fewer micro-batches than another is filled up with ones that train nothing.
    No row is cut, doubled or invented, and Σm stays that of the whole iteration.

    Args:
        iteration: This rank's; on rank 0 with `num_generated_tokens`.
        rows: All rows, on rank 0; ignored elsewhere.
        layout: `"packed"` or `"rows"`.
        max_tokens: Most tokens of one forward pass.
        num_replica_ranks: Ranks of a replica; a divisor of all ranks.
    """
    if num_ranks() == 1:
        iteration.micro_batches = _micro_batches(rows, layout, max_tokens)
        return
    shares: list[tuple[list[PackedBatch], int]] | None = None
    if distributed.get_rank() == 0:
        num_replicas = num_ranks() // num_replica_ranks
        batches = rank_batches(rows, num_replicas, layout=layout, max_tokens=max_tokens)
        shares = [
            (own, iteration.num_generated_tokens)
            for own in batches
            for _ in range(num_replica_ranks)
        ]
    received: list[Any] = [None]
    distributed.scatter_object_list(received, shares, src=0)
    iteration.micro_batches, iteration.num_generated_tokens = received[0]


def rank_batches(
    rows: Sequence[WeightedRow], world_size: int, *, layout: str, max_tokens: int
) -> list[list[PackedBatch]]:
    """Micro-batches of each replica: tokens balanced, equally many micro-batches everywhere.

    Args:
        rows: All rows; with none, no replica has a micro-batch.
        world_size: Number of replicas.
        layout: `"packed"` or `"rows"`.
        max_tokens: Most tokens of one forward pass.
    """
    lengths = [len(weighted.row.token_ids) for weighted in rows]
    batches = []
    for members in assign_to_ranks(lengths, world_size):
        own = _micro_batches([rows[i] for i in members], layout, max_tokens)
        numbers = torch.tensor(members, dtype=torch.int64)
        batches.append([replace(batch, row_numbers=numbers[batch.row_numbers]) for batch in own])
    most = max(len(own) for own in batches)
    return [own + [filler_batch()] * (most - len(own)) for own in batches]


def _micro_batches(rows: Sequence[WeightedRow], layout: str, max_tokens: int) -> list[PackedBatch]:
    return (pack if layout == "packed" else padded)(rows, max_tokens=max_tokens)


def summed_over_ranks(
    values: Sequence[float], *, device: torch.device, num_replica_ranks: int = 1
) -> list[float]:
    """Sums of scalars over replicas, on every rank; collective."""
    if num_ranks() == 1:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(total)
    return (total / num_replica_ranks).tolist()


def rows_of_all_ranks(own: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """What every rank has of its rows, by row number, together on rank 0; collective.

    Args:
        own: This rank's.

    Returns:
        All of them on rank 0; nothing elsewhere.
    """
    if num_ranks() == 1:
        return dict(own)
    is_first = distributed.get_rank() == 0
    parts: list[Any] | None = [None] * num_ranks() if is_first else None
    distributed.gather_object(dict(own), parts, dst=0)
    return {number: values for part in parts or () for number, values in part.items()}


def statistics_over_ranks(
    statistics: LossStatistics, *, num_replica_ranks: int = 1
) -> LossStatistics:
    """The statistics of all replicas together, on every rank; collective.

    A rank that trained nothing adds nothing: its counts are 0, its extremes infinite.
    """
    if num_ranks() == 1:
        return statistics
    summed = (*_COUNTS, "ratio_sum")
    sums = _stacked(statistics, summed)
    distributed.all_reduce(sums)
    sums /= num_replica_ranks
    extremes = torch.cat([-_stacked(statistics, _MINIMA), _stacked(statistics, _MAXIMA)])
    distributed.all_reduce(extremes, op=distributed.ReduceOp.MAX)
    merged = dict(zip(summed, sums, strict=True))
    merged |= dict(zip(_MINIMA, -extremes[: len(_MINIMA)], strict=True))
    merged |= dict(zip(_MAXIMA, extremes[len(_MINIMA) :], strict=True))
    return LossStatistics(
        **{name: value.to(getattr(statistics, name).dtype) for name, value in merged.items()}
    )


def _stacked(statistics: LossStatistics, names: Sequence[str]) -> Tensor:
    # Counts are exact in float64 up to 2^53.
    return torch.stack([getattr(statistics, name).double() for name in names])
