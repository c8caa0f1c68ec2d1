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
        dtype = _accumulation_dtype(hidden_TH)
        operand_VH = _operand(weight_VH)
        logprob_T = hidden_TH.new_zeros(len(hidden_TH), dtype=dtype)
        entropy_T, lse_T = torch.zeros_like(logprob_T), torch.zeros_like(logprob_T)
        for start in range(0, len(hidden_TH), chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            scaled_CV = _scaled_logits(hidden_TH[rows], operand_VH, bias_V, temperature)
            lse_T[rows] = scaled_CV.logsumexp(-1)
            log_CV = scaled_CV.sub_(lse_T[rows, None])
            logprob_T[rows] = log_CV.gather(1, targets_T[rows, None]).squeeze(1)
            entropy_T[rows] = -log_CV.exp().mul_(log_CV).sum(-1)
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, lse_T)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.mark_non_differentiable(entropy_T)
        return logprob_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, targets_T, lse_T = ctx.saved_tensors
        dtype = _accumulation_dtype(hidden_TH)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        operand_VH = _operand(weight_VH)
        grad_hidden = torch.empty_like(hidden_TH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=dtype) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=dtype) if needs_bias else None
        for start in range(0, len(hidden_TH), ctx.chunk_tokens):
            rows = slice(start, start + ctx.chunk_tokens)
            scaled_CV = _scaled_logits(hidden_TH[rows], operand_VH, bias_V, ctx.temperature)
            scale_C1 = (grad_T[rows] / ctx.temperature)[:, None]
            # d log π(z) / d logit_v = (1{v = z} − π_v) / temperature
            grad_CV = scaled_CV.sub_(lse_T[rows, None]).exp_().mul_(-scale_C1)
            grad_CV.scatter_add_(1, targets_T[rows, None], scale_C1.to(dtype))
            if grad_bias is not None:
                grad_bias += grad_CV.sum(0)
            grad_CV = grad_CV.to(operand_VH.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad_CV @ operand_VH
            if grad_weight is not None:
                _add_product(grad_weight, grad_CV.t(), hidden_TH[rows])
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight_VH.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias_V.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _operand(weight_VH: Tensor) -> Tensor:
    """The weight as matrix products take it.

    CUDA multiplies half-precision operands into a float32 result; elsewhere the result would be
    rounded to half precision, so the weight is widened once per pass.
    """
    if weight_VH.is_cuda:
        return weight_VH
    return weight_VH.to(_accumulation_dtype(weight_VH))


def _product(left: Tensor, right: Tensor) -> Tensor:
    dtype = _accumulation_dtype(left)
    if left.dtype == right.dtype == dtype:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=dtype)
    return left.to(dtype) @ right.to(dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == right.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += _product(left, right)


def _scaled_logits(
    hidden_CH: Tensor, operand_VH: Tensor, bias_V: Tensor | None, temperature: float
) -> Tensor:
    logits_CV = _product(hidden_CH, operand_VH.t())
    if bias_V is not None:
        logits_CV += bias_V
    return logits_CV.div_(temperature)
