"""Token rows into micro-batches, and rows onto ranks.

Which tokens count is always known from lengths, never read off token ids: the padding token is
often the end token, which must be trained.

Shape suffixes: T tokens of a micro-batch, S sequences, L longest sequence, N scored tokens.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from arise.errors import ConfigError
from arise.types import TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRow:
    """A token row and the advantage of its trajectory.

    A trajectory of several rows gives each of them its one advantage; group statistics count the
    trajectory once, before rows exist.

    Attributes:
        row: The tokens.
        advantage: A_j of Eq. 16.
    """

    row: TokenRow
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """One micro-batch: S sequences, one after the other, without padding.

    Example: rows [5, 6, 7] and [8, 9] give `input_ids` [5, 6, 7, 8, 9], `position_ids`
    [0, 1, 2, 0, 1] and `cu_seqlens` [0, 3, 5].

    Attributes:
        input_ids: int64[T].
        position_ids: int64[T], from 0 in every sequence.
        cu_seqlens: int32[S+1], first token of each sequence, then T.
        generated_mask: bool[T], m of Eq. 19; false for the first token of every sequence.
        behavior_logprobs: float32[T], log π_beh in nats where generated, else 0.
        advantages: float32[T], A of the token's trajectory.
        row_numbers: int64[S], which of the given rows each sequence is; -1 for none of them.
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    generated_mask: Tensor
    behavior_logprobs: Tensor
    advantages: Tensor
    row_numbers: Tensor

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.input_ids)

    @property
    def num_generated_tokens(self) -> int:
        """This micro-batch's part of Σm."""
        return int(self.generated_mask.sum())

    def to(self, device: torch.device | str) -> PackedBatch:
        """A copy with every tensor on `device`."""
        return PackedBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def pack(rows: Sequence[WeightedRow], *, max_tokens: int) -> list[PackedBatch]:
    """Put rows into as few micro-batches of at most `max_tokens` tokens as first-fit finds.

    The longest row is placed first, into the first micro-batch with room (first-fit decreasing).
    The result depends on the rows alone: inside a micro-batch they keep their order, and
    micro-batches are ordered by their first row. A row longer than `max_tokens` gets a micro-batch
    of its own, because a trajectory is never cut.

    Args:
        rows: The rows to train on; none gives no micro-batch.
        max_tokens: Token budget of a micro-batch.

    Returns:
        Every row exactly once.

    Raises:
        ConfigError: If `max_tokens` is below 1.
        ValueError: If a row is malformed.
    """
    lengths = _lengths(rows, max_tokens)
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(rows)), key=lambda i: (-lengths[i], i)):
        for number, free in enumerate(room):
            if lengths[index] <= free:
                bins[number].append(index)
                room[number] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(max_tokens - lengths[index])
    return _batches(rows, bins)


def padded(rows: Sequence[WeightedRow], *, max_tokens: int) -> list[PackedBatch]:
    """Micro-batches for models that cannot be packed: S · L is at most `max_tokens`.

    Rows of similar length share a micro-batch, so that little is padded. The batches look like
    those of `pack`; `to_padded` makes the row matrix of the model's call.

    Args:
        rows: The rows to train on.
        max_tokens: Budget of a micro-batch, padding included; a longer row is alone.

    Returns:
        Every row exactly once, ordered as in `pack`.

    Raises:
        ConfigError: If `max_tokens` is below 1.
        ValueError: If a row is malformed.
    """
    lengths = _lengths(rows, max_tokens)
    bins: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda i: (-lengths[i], i)):
        if bins and (len(bins[-1]) + 1) * lengths[bins[-1][0]] <= max_tokens:
            bins[-1].append(index)
        else:
            bins.append([index])
    return _batches(rows, bins)


def filler_batch() -> PackedBatch:
    """A micro-batch that trains nothing, for ranks that have fewer micro-batches than others.

    Sharded models communicate in every forward pass, so all ranks must run equally many. It has
    no generated token: loss 0, gradient 0, nothing in Σm.
    """
    row = TokenRow(
        token_ids=(0, 0),
        generated_mask=(False, False),
        logprobs=(0.0, 0.0),
        policy_versions=(-1, -1),
    )
    return _batch([WeightedRow(row=row, advantage=0.0)], [-1])


def to_padded(batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """The same sequences as right-padded rows. Positions are 0, 1, 2, … in every row.

    Example: [5, 7, 2] and [5] (end token 2, padded with 0) give `input_ids`
    [[5, 7, 2], [5, 0, 0]] and `attention_mask` [[1, 1, 1], [1, 0, 0]].

    Args:
        batch: A micro-batch.

    Returns:
        `input_ids` int64[S, L], `attention_mask` int64[S, L] (1 where there is a token), and
        `index` int64[T]: `x_SL.flatten(0, 1)[index]` is x in packed order.
    """
    cu_seqlens = batch.cu_seqlens.to(torch.int64)
    lengths_S = cu_seqlens[1:] - cu_seqlens[:-1]
    longest = int(lengths_S.max())
    sequence_T = torch.repeat_interleave(
        torch.arange(len(lengths_S), device=lengths_S.device), lengths_S
    )
    index_T = sequence_T * longest + batch.position_ids
    shape = (batch.num_sequences, longest)
    input_ids = batch.input_ids.new_zeros(shape)
    attention_mask = batch.input_ids.new_zeros(shape)
    input_ids.view(-1)[index_T] = batch.input_ids
    attention_mask.view(-1)[index_T] = 1
    return input_ids, attention_mask, index_T


def prediction_index(batch: PackedBatch, *, generated_only: bool) -> Tensor:
    """Positions whose hidden state predicts a token of the same sequence.

    Hidden state t predicts token t + 1, so `hidden[index]` is scored against
    `input_ids[index + 1]`, and `align_to_tokens` puts the result where the tokens are. The last
    position of a sequence predicts nothing that is known.

    Args:
        batch: A micro-batch.
        generated_only: Whether to leave out tokens that are never trained, so that the head runs
            on generated tokens alone.

    Returns:
        int64[N], ascending.
    """
    wanted_T = batch.generated_mask if generated_only else batch.position_ids > 0
    return torch.nonzero(wanted_T).squeeze(1) - 1


def align_to_tokens(values: Tensor, index: Tensor, *, num_tokens: int) -> Tensor:
    """Put values of `hidden[index]` at the tokens they are about; 0 elsewhere. Differentiable.

    Args:
        values: float[N], one per entry of `index`.
        index: int64[N], from `prediction_index`.
        num_tokens: T.

    Returns:
        float[T]: entry t is about token t. The first token of every sequence has 0.
    """
    return values.new_zeros(num_tokens).index_copy(0, index + 1, values)


def assign_to_ranks(row_lengths: Sequence[int], world_size: int) -> list[list[int]]:
    """Share rows out so that ranks hold about equally many tokens.

    The longest row goes first, each to the rank with the fewest tokens so far (the lowest rank
    among equals). No rank exceeds the mean by more than its last, shortest row.

    Args:
        row_lengths: Tokens of each row.
        world_size: Number of ranks.

    Returns:
        For each rank the indices of its rows, ascending; empty if there are too few rows.

    Raises:
        ValueError: If `world_size` is below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; it must be 1 or more")
    ranks: list[list[int]] = [[] for _ in range(world_size)]
    loads = [(0, rank) for rank in range(world_size)]
    for index in sorted(range(len(row_lengths)), key=lambda i: (-row_lengths[i], i)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + row_lengths[index], rank))
        ranks[rank].append(index)
    return [sorted(rank) for rank in ranks]


def _lengths(rows: Sequence[WeightedRow], max_tokens: int) -> list[int]:
    if max_tokens < 1:
        raise ConfigError(
            f"algorithm.micro_batch_tokens is {max_tokens}; a micro-batch needs 1 or more"
        )
    for number, weighted in enumerate(rows):
        row = weighted.row
        lengths = {len(row.token_ids), len(row.generated_mask), len(row.logprobs)}
        if len(lengths) != 1:
            raise ValueError(
                f"row {number} has {len(row.token_ids)} tokens, {len(row.generated_mask)} mask "
                f"entries and {len(row.logprobs)} log-probabilities; they must be equally many"
            )
        if not row.token_ids or row.generated_mask[0]:
            raise ValueError(f"row {number} must begin with a prompt token: nothing predicts it")
    return [len(weighted.row.token_ids) for weighted in rows]


def _batches(rows: Sequence[WeightedRow], bins: list[list[int]]) -> list[PackedBatch]:
    ordered = sorted(sorted(members) for members in bins)
    return [_batch([rows[index] for index in members], members) for members in ordered]


def _batch(rows: Sequence[WeightedRow], numbers: Sequence[int]) -> PackedBatch:
    lengths = [len(weighted.row.token_ids) for weighted in rows]

    def joined(values: list[Sequence[float]], dtype: torch.dtype) -> Tensor:
        return torch.tensor(list(itertools.chain.from_iterable(values)), dtype=dtype)

    return PackedBatch(
        input_ids=joined([weighted.row.token_ids for weighted in rows], torch.int64),
        position_ids=joined([range(length) for length in lengths], torch.int64),
        cu_seqlens=torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
        generated_mask=joined([weighted.row.generated_mask for weighted in rows], torch.bool),
        behavior_logprobs=joined([weighted.row.logprobs for weighted in rows], torch.float32),
        advantages=torch.repeat_interleave(
            torch.tensor([weighted.advantage for weighted in rows], dtype=torch.float32),
            torch.tensor(lengths),
        ),
        row_numbers=torch.tensor(numbers, dtype=torch.int64),
    )
