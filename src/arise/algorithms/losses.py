"""Eq. 18 and 19: importance-weighted policy loss with ratio filter and dual clip.

Shape suffix: T tokens of a micro-batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from arise.errors import ConfigError

LOSS_ORDERS = ("arise", "areal")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossStatistics:
    """What the loss saw, detached; `a + b` merges two micro-batches.

    All are 0-dimensional: counts int64, the rest in the loss's dtype. A token is *measured* if it
    is generated and its ω is a finite number: a behaviour log-probability of -9999 gives an ω that
    overflows, which is masked and counted but would make a mean meaningless.

    Attributes:
        num_generated: Generated tokens, measured or not.
        num_measured: Tokens that `ratio_sum`, `ratio_min` and `ratio_max` are over.
        num_kept: Tokens with m̃ = 1.
        num_masked_low: Generated tokens dropped because ω ≤ `ratio_low`.
        num_masked_high: Generated tokens dropped because ω ≥ `ratio_high`.
        num_dual_clipped: Kept tokens whose loss is the cap: A < 0 and the clipped ratio ≥ κ.
        num_nonfinite: Generated tokens without a finite log-probability on both sides.
        ratio_sum: Σ ω.
        ratio_min: Smallest ω; +inf if nothing was measured.
        ratio_max: Largest ω; -inf if nothing was measured.
        max_abs_log_ratio: Largest |log ω| in nats of the generated tokens with finite
            log-probabilities; 0 if there are none.
    """

    num_generated: Tensor
    num_measured: Tensor
    num_kept: Tensor
    num_masked_low: Tensor
    num_masked_high: Tensor
    num_dual_clipped: Tensor
    num_nonfinite: Tensor
    ratio_sum: Tensor
    ratio_min: Tensor
    ratio_max: Tensor
    max_abs_log_ratio: Tensor

    def __add__(self, other: LossStatistics) -> LossStatistics:
        return LossStatistics(
            num_generated=self.num_generated + other.num_generated,
            num_measured=self.num_measured + other.num_measured,
            num_kept=self.num_kept + other.num_kept,
            num_masked_low=self.num_masked_low + other.num_masked_low,
            num_masked_high=self.num_masked_high + other.num_masked_high,
            num_dual_clipped=self.num_dual_clipped + other.num_dual_clipped,
            num_nonfinite=self.num_nonfinite + other.num_nonfinite,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_min=torch.minimum(self.ratio_min, other.ratio_min),
            ratio_max=torch.maximum(self.ratio_max, other.ratio_max),
            max_abs_log_ratio=torch.maximum(self.max_abs_log_ratio, other.max_abs_log_ratio),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyLoss:
    """Loss of one micro-batch and what it was computed from.

    Attributes:
        loss: 0-dimensional; this micro-batch's share, so the shares of an iteration add up.
        statistics: Detached counts and ratios.
    """

    loss: Tensor
    statistics: LossStatistics


def dual_clipped_loss(
    logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    generated_mask: Tensor,
    *,
    loss_order: str,
    dual_clip: float,
    ratio_low: float,
    ratio_high: float,
    num_generated_tokens: int,
) -> PolicyLoss:
    """Policy loss of Eq. 19 with the importance ratio of Eq. 18.

        ω = exp(log π_θ − log π_beh),   m̃ = m · 1{ratio_low < ω < ratio_high},
        loss = 1/Σm · Σ m̃ · min(−ω A, κ |A|)

    The gradient is −A ω ∇log π_θ on kept tokens and exactly 0 where a token is masked, or where
    A < 0 and ω ≥ κ. Mask and clip are decided on detached values, on the log scale, where the
    strict bounds are exact. A token whose log-probability is not finite on either side is masked;
    it still counts in Σm. Nothing kept, or Σm = 0, gives loss 0 with gradient 0.

    That is `loss_order="arise"`, to the letter of Eq. 19: weight, then cap. `"areal"` is the other
    order, that of AReaL's decoupled loss: cap, then weight,

        m̃ · ω̂ · min(−r A, κ |A|),   r = π_θ / π_prox,   ω̂ = π_prox / π_beh held fixed,

    with π_prox the policy before this step. One iteration is one step, so r = 1 and the cap never
    binds. The orders differ on kept tokens with A < 0 and ω ≥ κ alone: loss κ|A| and gradient 0
    against loss −ω A and gradient −A ω ∇log π_θ, up to ω = `ratio_high`.

    Example: (ω, A) = (4.9, −1) → 3; (4.9, 1) → −4.9; (5.0, −1) → 0; (0.5, 1) → 0. In the other
    order the first is 4.9, the others are the same.

    Args:
        logprobs: float[T], log π_θ with the sampling temperature applied; float32 or float64.
        behavior_logprobs: float[T], log π_beh as the engine reported it.
        advantages: float[T], A of the token's trajectory.
        generated_mask: bool[T], m: true where the model generated the token.
        loss_order: `"arise"` or `"areal"`.
        dual_clip: κ, above 1.
        ratio_low: Lower bound of ω, in [0, 1), strict.
        ratio_high: Upper bound of ω, above 1, strict.
        num_generated_tokens: Σm over the whole iteration and all workers, before filtering.

    Returns:
        The loss, connected to `logprobs`, and statistics.

    Raises:
        ConfigError: If the order is unknown, or κ or a bound is out of range.
        ValueError: If Σm is negative.
    """
    _check(loss_order, dual_clip, ratio_low, ratio_high)
    if num_generated_tokens < 0:
        raise ValueError(f"num_generated_tokens is {num_generated_tokens}; it counts tokens")
    behavior_T = behavior_logprobs.to(logprobs.dtype)
    advantages_T = advantages.to(logprobs.dtype)
    current_T = logprobs.detach()
    finite_T = generated_mask & current_T.isfinite() & behavior_T.isfinite()
    log_ratio_T = torch.where(finite_T, current_T - behavior_T, 0.0)
    log_low = math.log(ratio_low) if ratio_low > 0.0 else -math.inf
    low_T = finite_T & (log_ratio_T <= log_low)
    high_T = finite_T & (log_ratio_T >= math.log(ratio_high))
    kept_T = finite_T & ~low_T & ~high_T
    # log r of the other order is 0: the proximal policy is the current one.
    log_capped_T = log_ratio_T if loss_order == "arise" else torch.zeros_like(log_ratio_T)
    clipped_T = kept_T & (advantages_T < 0) & (log_capped_T >= math.log(dual_clip))

    # The inputs of exp are replaced, not its outputs: the backward of an unused exp(9998) is
    # 0 * inf = NaN.
    ratio_T = torch.exp(torch.where(kept_T, logprobs - behavior_T, 0.0))
    surrogate_T = torch.where(clipped_T, dual_clip * advantages_T.abs(), -ratio_T * advantages_T)
    total = torch.where(kept_T, surrogate_T, 0.0).sum()
    statistics = _statistics(
        generated_mask, finite_T, kept_T, low_T, high_T, clipped_T, log_ratio_T
    )
    return PolicyLoss(loss=total / max(num_generated_tokens, 1), statistics=statistics)


def _statistics(
    generated_T: Tensor,
    finite_T: Tensor,
    kept_T: Tensor,
    low_T: Tensor,
    high_T: Tensor,
    clipped_T: Tensor,
    log_ratio_T: Tensor,
) -> LossStatistics:
    ratio_T = log_ratio_T.exp()
    measured_T = finite_T & ratio_T.isfinite()
    # An extra element keeps min and max defined for a micro-batch without tokens.
    inf_1 = ratio_T.new_full((1,), math.inf)
    return LossStatistics(
        num_generated=generated_T.sum(),
        num_measured=measured_T.sum(),
        num_kept=kept_T.sum(),
        num_masked_low=low_T.sum(),
        num_masked_high=high_T.sum(),
        num_dual_clipped=clipped_T.sum(),
        num_nonfinite=(generated_T & ~finite_T).sum(),
        ratio_sum=torch.where(measured_T, ratio_T, 0.0).sum(),
        ratio_min=torch.cat([torch.where(measured_T, ratio_T, math.inf), inf_1]).min(),
        ratio_max=torch.cat([torch.where(measured_T, ratio_T, -math.inf), -inf_1]).max(),
        max_abs_log_ratio=torch.cat([log_ratio_T.abs(), log_ratio_T.new_zeros(1)]).max(),
    )


def _check(loss_order: str, dual_clip: float, ratio_low: float, ratio_high: float) -> None:
    if loss_order not in LOSS_ORDERS:
        raise ConfigError(
            f"algorithm.loss_order is {loss_order!r}; choose one of {', '.join(LOSS_ORDERS)}"
        )
    if not (math.isfinite(dual_clip) and dual_clip > 1.0):
        raise ConfigError(f"algorithm.dual_clip is {dual_clip}; it must be a number above 1")
    if not 0.0 <= ratio_low < 1.0:
        raise ConfigError(f"algorithm.ratio_low is {ratio_low}; it must be in [0, 1)")
    if not (math.isfinite(ratio_high) and ratio_high > 1.0):
        raise ConfigError(f"algorithm.ratio_high is {ratio_high}; it must be a number above 1")
