"""Log π_θ of chosen tokens from hidden states, without the [T, V] logits.

Shape suffixes: T scored tokens, C tokens of a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from arise.errors import ConfigError


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
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target token and entropy of its distribution.

        log π(z_t) = s_{t,z_t} − log Σ_v exp s_{t,v},   s = (hidden · Wᵀ + bias) / temperature
        H_t = − Σ_v π_v log π_v

    Only `chunk_tokens` rows of logits exist at any time: the forward pass keeps the log-sum-exp,
    the backward pass computes each chunk's logits again. Logits, sums and the accumulated weight
    gradient are float32 under half-precision inputs (float64 under float64).

    Example: T = 0.6, logits [1, 0, −1, −2], token 0 → −0.20806.

    Args:
        hidden: float[T, H], hidden states that predict the targets. T = 0 is allowed.
        head_weight: float[V, H], weight of the language-model head, same dtype.
        targets: int64[T], token ids.
        temperature: Sampling temperature of the rollouts, above 0.
        head_bias: float[V] or `None`.
        chunk_tokens: Tokens scored at once; memory is about 8 · chunk_tokens · V bytes.

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
        hidden, head_weight, head_bias, targets, temperature, chunk_tokens
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
    ) -> tuple[Tensor, Tensor]:
        head = _Head(weight_VH, bias_V, temperature)
        logprob_T = hidden_TH.new_zeros(len(hidden_TH), dtype=head.dtype)
        entropy_T, lse_T = torch.zeros_like(logprob_T), torch.zeros_like(logprob_T)
        powers = _Buffer(hidden_TH, head.dtype)
        for start in range(0, len(hidden_TH), chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            scaled_CV = head.scaled_logits(hidden_TH[rows])
            largest_C = scaled_CV.amax(-1)
            scaled_CV.sub_(largest_C[:, None])
            power_CV = torch.exp(scaled_CV, out=powers.empty(*scaled_CV.shape))
            total_C = power_CV.sum(-1)
            log_total_C = total_C.log()
            chosen_C = scaled_CV.gather(1, targets_T[rows, None]).squeeze(1)
            logprob_T[rows] = chosen_C - log_total_C
            # -Σ π log π with log π = s - log Σ exp s
            entropy_T[rows] = log_total_C - torch.linalg.vecdot(power_CV, scaled_CV) / total_C
            lse_T[rows] = largest_C + log_total_C
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, lse_T)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.mark_non_differentiable(entropy_T)
        return logprob_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, targets_T, lse_T = ctx.saved_tensors
        head = _Head(weight_VH, bias_V, ctx.temperature)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden_TH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=head.dtype) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=head.dtype) if needs_bias else None
        # Masked tokens and groups without advantage ask for nothing.
        for rows in grad_T.nonzero().squeeze(1).split(ctx.chunk_tokens):
            # d log π(z) / d logit_v = -(π_v - 1{v = z}) / temperature. What is the same for a whole
            # row is applied to its H hidden values, not to its V logits.
            excess_CV = head.scaled_logits(hidden_TH[rows]).sub_(lse_T[rows, None]).exp_()
            minus_one_C1 = excess_CV.new_full((len(excess_CV), 1), -1.0)
            excess_CV.scatter_add_(1, targets_T[rows, None], minus_one_C1)
            scale_C1 = (grad_T[rows] / -ctx.temperature)[:, None]
            if grad_bias is not None:
                grad_bias += (scale_C1.T @ excess_CV).squeeze(0)
            excess_CV = excess_CV.to(head.operand_VH.dtype)
            if grad_hidden is not None:
                grad_CH = (excess_CV @ head.operand_VH) * scale_C1
                grad_hidden[rows] = grad_CH.to(grad_hidden.dtype)
            if grad_weight is not None:
                scaled_CH = (hidden_TH[rows] * scale_C1).to(head.operand_VH.dtype)
                _add_product(grad_weight, excess_CV.t(), scaled_CH)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight_VH.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias_V.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None


class _Buffer:
    """One piece of memory for all chunks: allocating a chunk anew costs as much as filling it."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._flat = like.new_empty(0, dtype=dtype)

    def empty(self, num_rows: int, num_columns: int) -> Tensor:
        size = num_rows * num_columns
        if len(self._flat) < size:
            self._flat = self._flat.new_empty(size)
        return self._flat[:size].view(num_rows, num_columns)


class _Head:
    """Output head and temperature of one pass.

    CUDA multiplies half-precision operands into a float32 result; elsewhere the result would be
    rounded to half precision, so the weight is widened once per pass.
    """

    def __init__(self, weight_VH: Tensor, bias_V: Tensor | None, temperature: float) -> None:
        self.dtype = _accumulation_dtype(weight_VH)
        self.operand_VH = weight_VH if weight_VH.is_cuda else weight_VH.to(self.dtype)
        self._bias_V = None if bias_V is None else bias_V.to(self.dtype) / temperature
        self._temperature = temperature
        self._logits = _Buffer(weight_VH, self.dtype)

    def scaled_logits(self, hidden_CH: Tensor) -> Tensor:
        """(hidden · Wᵀ + bias) / temperature, valid until the next call."""
        if self.operand_VH.dtype == self.dtype:
            out = self._logits.empty(len(hidden_CH), len(self.operand_VH))
            cold_CH = hidden_CH.to(self.dtype) / self._temperature
            scaled_CV = torch.mm(cold_CH, self.operand_VH.t(), out=out)
        else:
            scaled_CV = torch.mm(hidden_CH, self.operand_VH.t(), out_dtype=self.dtype)
            scaled_CV.div_(self._temperature)
        if self._bias_V is not None:
            scaled_CV += self._bias_V
        return scaled_CV


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == right.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right, out_dtype=total.dtype)
