"""Log π_θ of chosen tokens from hidden states, without the [T, V] logits.

Logits exist one tile at a time: a chunk of tokens times a range of the vocabulary. On CPU a tile
stays in cache, so that what is done to it costs next to nothing beside the matrix products, of
which there are four (the plain computation has three, and passes over memory instead).

With tensor parallelism each rank has a range of the vocabulary; what a row of logits is reduced to
(its largest, its sums) is then reduced over ranks.

Shape suffixes: T scored tokens, R those with a gradient, C tokens of a chunk, H hidden size,
V vocabulary, N columns of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp

from arise.errors import ConfigError

_CPU_TILE_COLUMNS = 1024


def require_full_distribution(*, temperature: float, top_p: float, top_k: int) -> None:
    """Refuse training rollouts that sample from anything but the plain softmax.

    The trainer scores the whole vocabulary at the sampling temperature. An engine that renormalizes
    over the tokens that top-p or top-k keep reports a larger log-probability, so that every
    on-policy ω would silently equal the kept mass instead of 1.

    Args:
        temperature: Softmax temperature of training rollouts, above 0.
        top_p: Nucleus mass; must be 1.
        top_k: Number of candidates; must be 0 or -1 (off).

    Raises:
        ConfigError: If sampling is greedy or truncated.
    """
    if not (math.isfinite(temperature) and temperature > 0.0):
        raise ConfigError(f"rollout.temperature is {temperature}; training needs a number above 0")
    if top_p != 1.0:
        raise ConfigError(f"rollout.top_p is {top_p}; training rollouts need 1.0 (off)")
    if top_k not in (0, -1):
        raise ConfigError(f"rollout.top_k is {top_k}; training rollouts need 0 (off)")


def token_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    head_bias: Tensor | None = None,
    chunk_tokens: int,
    vocabulary_group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target token and entropy of its distribution.

        log π(z_t) = s_{t,z_t} − log Σ_v exp s_{t,v},   s = (hidden · Wᵀ + bias) / temperature
        H_t = − Σ_v π_v log π_v

    Only `chunk_tokens` rows of logits exist at any time, on CPU 1,024 columns of them: the forward
    pass keeps the log-sum-exp, the backward pass computes each tile's logits again. Logits, sums
    and the accumulated weight gradient are float32 under half-precision inputs (float64 under
    float64).

    Example: T = 0.6, logits [1, 0, −1, −2], token 0 → −0.20806.

    Args:
        hidden: float[T, H], hidden states that predict the targets. T = 0 is allowed.
        head_weight: float[V, H], weight of the language-model head, same dtype.
        targets: int64[T], token ids.
        temperature: Sampling temperature of the rollouts, above 0.
        head_bias: float[V] or `None`.
        chunk_tokens: Tokens scored at once; beside the gradients, memory is about
            8 · chunk_tokens · V bytes on CUDA and 8 · chunk_tokens · 1,024 on CPU.
        vocabulary_group: Ranks that hold equal ranges of the vocabulary, in their order: then
            `head_weight` and `head_bias` are this rank's V rows, and everything else is the same
            on every rank. `None` if all of it is here.

    Returns:
        float32[T] log-probabilities in nats, differentiable in hidden, weight and bias (once), and
        float32[T] entropies in nats without gradient. Both float64 for float64 inputs.

    Raises:
        ConfigError: If the temperature or the chunk size is out of range.
        ValueError: If shapes or dtypes do not fit.
    """
    if not (math.isfinite(temperature) and temperature > 0.0):
        raise ConfigError(f"rollout.temperature is {temperature}; training needs a number above 0")
    if chunk_tokens < 1:
        raise ConfigError(f"model.logprob_chunk_tokens is {chunk_tokens}; it must be 1 or more")
    if hidden.ndim != 2 or head_weight.ndim != 2 or hidden.shape[1] != head_weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and head_weight {tuple(head_weight.shape)} "
            "must be [T, H] and [V, H]"
        )
    if hidden.dtype != head_weight.dtype:
        raise ValueError(f"hidden is {hidden.dtype} but head_weight is {head_weight.dtype}")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets {tuple(targets.shape)} do not align with {len(hidden)} states")
    result = _TokenLogprobs.apply(
        hidden, head_weight, head_bias, targets, temperature, chunk_tokens, vocabulary_group
    )
    return cast(tuple[Tensor, Tensor], result)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        temperature: float,
        chunk_tokens: int,
        group: ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        head = _Head(weight_VH, bias_V, temperature)
        if group is not None:
            targets_T = targets_T - group.rank() * len(weight_VH)
        states_TH = head.states(hidden_TH)
        softmax = _RunningSoftmax(targets_T, head.dtype)
        for tile in head.tiles():
            for rows in _chunks(len(hidden_TH), chunk_tokens):
                softmax.add(rows, tile, head.scaled_logits(states_TH[rows], tile))
        logprob_T, entropy_T, lse_T = softmax.results(group)
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, lse_T)
        ctx.temperature, ctx.chunk_tokens, ctx.group = temperature, chunk_tokens, group
        ctx.mark_non_differentiable(entropy_T)
        return logprob_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, targets_T, lse_T = ctx.saved_tensors
        head = _Head(weight_VH, bias_V, ctx.temperature)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden_TH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V) if needs_bias else None
        # Masked tokens and groups without advantage ask for nothing.
        kept_R = grad_T.nonzero().squeeze(1)
        targets_R, lse_R1 = targets_T[kept_R], lse_T[kept_R, None]
        states_RH = head.states(hidden_TH[kept_R])
        # d log π(z) / d logit_v = -(π_v - 1{v = z}) / temperature. What is the same for a whole row
        # is applied to its H hidden values, not to its V logits.
        scale_R1 = (grad_T[kept_R] / -ctx.temperature)[:, None]
        scaled_RH = (hidden_TH[kept_R] * scale_R1).to(head.operand_dtype)
        sum_RH = torch.zeros_like(scaled_RH, dtype=head.dtype)
        for tile in head.tiles():
            sum_NH = _accumulator(grad_weight, tile, head.dtype)
            sum_N = _accumulator(grad_bias, tile, head.dtype)
            for rows in _chunks(len(kept_R), ctx.chunk_tokens):
                excess_CN = head.scaled_logits(states_RH[rows], tile).sub_(lse_R1[rows]).exp_()
                tile.subtract_one_at(targets_R[rows], excess_CN)
                if sum_N is not None:
                    sum_N.addmv_(excess_CN.t(), scale_R1[rows, 0])
                excess_CN = excess_CN.to(head.operand_dtype)
                if needs_hidden:
                    _add_product(sum_RH[rows], excess_CN, tile.weight_NH)
                if sum_NH is not None:
                    _add_product(sum_NH, excess_CN.t(), scaled_RH[rows])
            _store(grad_weight, tile, sum_NH)
            _store(grad_bias, tile, sum_N)
        if grad_hidden is not None:
            if ctx.group is not None:
                distributed.all_reduce(sum_RH, group=ctx.group)
            grad_hidden[kept_R] = sum_RH.mul_(scale_R1).to(grad_hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """A range of the vocabulary: its rows of the head, as operands of a matrix product."""

    columns: slice
    weight_NH: Tensor
    bias_N: Tensor | None

    def positions(self, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        """Column [C, 1] of each target, and whether it is in this range; else any column."""
        column_C1 = targets_C[:, None] - self.columns.start
        inside_C1 = (column_C1 >= 0) & (column_C1 < len(self.weight_NH))
        return column_C1.clamp_(0, len(self.weight_NH) - 1), inside_C1

    def subtract_one_at(self, targets_C: Tensor, values_CN: Tensor) -> None:
        column_C1, inside_C1 = self.positions(targets_C)
        values_CN.scatter_add_(1, column_C1, -inside_C1.to(values_CN.dtype))


class _Head:
    """Output head and temperature of one pass.

    CUDA multiplies half-precision operands into a float32 result; elsewhere the result would be
    rounded to half precision, so operands are widened. Tiles pay where passes over memory cost more
    than calls, so on CUDA the whole vocabulary is one.
    """

    def __init__(self, weight_VH: Tensor, bias_V: Tensor | None, temperature: float) -> None:
        self.dtype = _accumulation_dtype(weight_VH)
        self.operand_dtype = weight_VH.dtype if weight_VH.is_cuda else self.dtype
        self._weight_VH, self._bias_V = weight_VH, bias_V
        self._temperature = temperature
        self._logits = _Buffer(weight_VH, self.dtype)

    def tiles(self) -> Iterator[_Tile]:
        num_columns = len(self._weight_VH) if self._weight_VH.is_cuda else _CPU_TILE_COLUMNS
        for columns in _chunks(len(self._weight_VH), num_columns):
            bias_N = None
            if self._bias_V is not None:
                bias_N = self._bias_V[columns].to(self.dtype) / self._temperature
            weight_NH = self._weight_VH[columns].to(self.operand_dtype)
            yield _Tile(columns=columns, weight_NH=weight_NH, bias_N=bias_N)

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states as the first operand of `scaled_logits`."""
        if self.operand_dtype == self.dtype:
            return hidden.to(self.dtype) / self._temperature
        return hidden

    def scaled_logits(self, states_CH: Tensor, tile: _Tile) -> Tensor:
        """(hidden · Wᵀ + bias) / temperature of a tile, valid until the next call."""
        if self.operand_dtype == self.dtype:
            out = self._logits.empty(len(states_CH), len(tile.weight_NH))
            scaled_CN = torch.mm(states_CH, tile.weight_NH.t(), out=out)
        else:
            scaled_CN = torch.mm(states_CH, tile.weight_NH.t(), out_dtype=self.dtype)
            scaled_CN.div_(self._temperature)
        if tile.bias_N is not None:
            scaled_CN += tile.bias_N
        return scaled_CN


class _RunningSoftmax:
    """Log-sum-exp, entropy and target's log-probability from tiles in any order."""

    def __init__(self, targets_T: Tensor, dtype: torch.dtype) -> None:
        self._targets_T = targets_T
        self._chosen_T = torch.zeros_like(targets_T, dtype=dtype)
        # The lowest number, not -inf: -inf times a sum of 0 is not a number.
        self._largest_T = torch.full_like(self._chosen_T, torch.finfo(dtype).min)
        # Σ exp(s - largest), and Σ exp(s - largest) · (s - largest)
        self._total_T = torch.zeros_like(self._chosen_T)
        self._weighted_T = torch.zeros_like(self._chosen_T)
        self._powers = _Buffer(self._chosen_T, dtype)

    def add(self, rows: slice, tile: _Tile, scaled_CN: Tensor) -> None:
        """Take in a tile of logits, whose memory is used up."""
        column_C1, inside_C1 = tile.positions(self._targets_T[rows])
        chosen_C1 = scaled_CN.gather(1, column_C1)
        chosen_C, before_C = self._chosen_T[rows], self._largest_T[rows]
        chosen_C.copy_(torch.where(inside_C1[:, 0], chosen_C1[:, 0], chosen_C))
        largest_C = torch.maximum(before_C, scaled_CN.amax(-1))
        scaled_CN.sub_(largest_C[:, None])
        power_CN = torch.exp(scaled_CN, out=self._powers.empty(*scaled_CN.shape))
        # What was summed up before is relative to the old largest.
        shift_C = before_C - largest_C
        shrink_C = shift_C.exp()
        total_C, weighted_C = self._total_T[rows], self._weighted_T[rows]
        weighted_C.addcmul_(shift_C, total_C).mul_(shrink_C)
        total_C.mul_(shrink_C).add_(power_CN.sum(-1))
        weighted_C.add_(scaled_CN.mul_(power_CN).sum(-1))
        before_C.copy_(largest_C)

    def results(self, group: ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of the target, entropy, and log-sum-exp; each [T]."""
        if group is not None:
            self._add_other_ranges(group)
        log_total_T = self._total_T.log()
        logprob_T = self._chosen_T - self._largest_T - log_total_T
        # -Σ π log π with log π = s - log Σ exp s
        entropy_T = log_total_T - self._weighted_T / self._total_T
        return logprob_T, entropy_T, self._largest_T + log_total_T

    def _add_other_ranges(self, group: ProcessGroup) -> None:
        """Sum up over the ranks that have the other ranges of the vocabulary."""
        own_T = self._largest_T.clone()
        distributed.all_reduce(self._largest_T, op=ReduceOp.MAX, group=group)
        shift_T = own_T - self._largest_T
        shrink_T = shift_T.exp()
        self._weighted_T.addcmul_(shift_T, self._total_T).mul_(shrink_T)
        self._total_T.mul_(shrink_T)
        # The target is in one range; elsewhere its logit is 0.
        sums_3T = torch.stack([self._total_T, self._weighted_T, self._chosen_T])
        distributed.all_reduce(sums_3T, group=group)
        self._total_T, self._weighted_T, self._chosen_T = sums_3T


class _Buffer:
    """One piece of memory for all tiles: allocating one anew costs as much as filling it."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._flat = like.new_empty(0, dtype=dtype)

    def empty(self, num_rows: int, num_columns: int) -> Tensor:
        size = num_rows * num_columns
        if len(self._flat) < size:
            self._flat = self._flat.new_empty(size)
        return self._flat[:size].view(num_rows, num_columns)


def _chunks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _accumulator(grad: Tensor | None, tile: _Tile, dtype: torch.dtype) -> Tensor | None:
    """Where a tile's gradient is summed up: in place, unless that would round every sum."""
    if grad is None or grad.dtype == dtype:
        return None if grad is None else grad[tile.columns]
    return torch.zeros_like(grad[tile.columns], dtype=dtype)


def _store(grad: Tensor | None, tile: _Tile, total: Tensor | None) -> None:
    if grad is not None and total is not None and grad.dtype != total.dtype:
        grad[tile.columns] = total.to(grad.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == right.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right, out_dtype=total.dtype)
