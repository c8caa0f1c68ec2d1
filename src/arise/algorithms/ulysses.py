"""Sequence parallelism after Ulysses: ranks hold tokens, and inside attention they hold heads.

Each of n ranks runs the model on its share of a micro-batch's tokens. Attention alone looks at
other tokens: there an all-to-all turns [all heads, T/n tokens] into [heads/n, all T tokens] and
another one turns it back, so that every head sees whole sequences, wherever shares begin and end.
(Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509.)

Shape suffixes: A query heads, K key-value heads, T tokens, L tokens of a share, D head size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from arise.algorithms.packing import PackedBatch


def token_share(num_tokens: int, group: ProcessGroup | None) -> slice:
    """Which tokens of a micro-batch this rank holds: ceil(T / n) of them, the last ranks fewer.

    Args:
        num_tokens: T.
        group: Ranks that share the tokens; `None` is one rank.
    """
    if group is None:
        return slice(0, num_tokens)
    length = -(-num_tokens // group.size())
    start = min(length * group.rank(), num_tokens)
    return slice(start, min(start + length, num_tokens))


def shared_inputs(batch: PackedBatch, group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """What the model is given of a packed micro-batch on this rank.

    Ranks must hold equally many tokens. Tokens that fill up the last shares are a sequence of their
    own, which no other token sees.

    Returns:
        `input_ids` and `position_ids`, int64[L], and `cu_seqlens`, int32[S+1] or with one more
        entry, of the whole filled-up micro-batch.
    """
    num_ranks = group.size()
    length = -(-batch.num_tokens // num_ranks)
    num_fillers = length * num_ranks - batch.num_tokens
    own = slice(length * group.rank(), length * (group.rank() + 1))
    fillers = batch.input_ids.new_zeros(num_fillers)
    input_ids = torch.cat([batch.input_ids, fillers])[own]
    position_ids = torch.cat([batch.position_ids, torch.arange(num_fillers).to(fillers)])[own]
    cu_seqlens = batch.cu_seqlens
    if num_fillers:
        cu_seqlens = torch.cat([cu_seqlens, cu_seqlens[-1:] + num_fillers])
    return input_ids, position_ids, cu_seqlens


def gather_tokens(heads_1ALD: Tensor, group: ProcessGroup) -> Tensor:
    """From all heads of this rank's tokens to this rank's heads of all tokens; differentiable.

    With fewer (key-value) heads than ranks, each head goes to the ranks whose queries use it.

    Args:
        heads_1ALD: float[1, A, L, D]; A a multiple of n, or n a multiple of A.
        group: The n ranks.

    Returns:
        float[1, max(A, n) / n, n · L, D].
    """
    num_heads = heads_1ALD.shape[1]
    if num_heads < group.size():
        heads_1ALD = heads_1ALD.repeat_interleave(group.size() // num_heads, dim=1)
    return cast(Tensor, _Exchange.apply(heads_1ALD, group, 1, 2))


def scatter_tokens(tokens_1TAD: Tensor, group: ProcessGroup) -> Tensor:
    """The way back: from this rank's heads of all tokens to all heads of its tokens.

    Args:
        tokens_1TAD: float[1, T, A / n, D].
        group: The n ranks.

    Returns:
        float[1, T / n, A, D].
    """
    return cast(Tensor, _Exchange.apply(tokens_1TAD, group, 1, 2))


def sum_of_shares(values: Tensor, group: ProcessGroup) -> Tensor:
    """Sum over ranks of values that each rank has for its own tokens, 0 elsewhere.

    Every rank goes on with the same computation from the same sum, so the gradient of a rank's own
    values is that of the sum, and nothing is communicated on the way back.
    """
    return cast(Tensor, _SumOfShares.apply(values, group))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, group: ProcessGroup, split_dim: int, joined_dim: int
    ) -> Tensor:
        ctx.group, ctx.split_dim, ctx.joined_dim = group, split_dim, joined_dim
        return _exchanged(values, group, split_dim, joined_dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _exchanged(grad, ctx.group, ctx.joined_dim, ctx.split_dim), None, None, None


class _SumOfShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        total = values.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, None


def _exchanged(values: Tensor, group: ProcessGroup, split_dim: int, joined_dim: int) -> Tensor:
    """Piece r of `split_dim` goes to rank r; what arrives is joined along `joined_dim`."""
    sent = torch.stack(values.chunk(group.size(), dim=split_dim))
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), dim=joined_dim)
