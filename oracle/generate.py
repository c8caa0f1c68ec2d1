"""Run the policy losses of verl and AReaL on random batches and write inputs and gradients down.

Runs in the environment that `make oracle` builds; see README.md beside this file. Floats are
written as Python writes them, which reads back to the same float64.

    python oracle/generate.py tests/data/oracle_golden.json

Shape suffixes: B sequences, L tokens of a sequence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from areal.api.cli_args import RejectionSamplingConfig
from areal.utils.functional import ppo_actor_loss_fn
from torch import Tensor
from verl.trainer.ppo.core_algos import compute_policy_loss_bypass_mode
from verl.workers.config import ActorConfig, PolicyLossConfig

NUM_BATCHES, NUM_SEQUENCES, LENGTH = 24, 4, 16
DUAL_CLIP, RATIO_LOW, RATIO_HIGH = 3.0, 0.5, 5.0
# Ratios this near a bound are moved: there, implementations may round to different sides.
MARGIN = 1e-3
UNBOUNDED = 1e9

Loss = Callable[[dict[str, Tensor], Tensor, int], Tensor]


def random_batch(generator: torch.Generator) -> dict[str, Tensor]:
    """Inputs of one batch: log ω around 0 with masked tails on both sides, some tokens not ours."""

    def normal() -> Tensor:
        return torch.randn(NUM_SEQUENCES, LENGTH, generator=generator, dtype=torch.float64)

    def uniform() -> Tensor:
        return torch.rand(NUM_SEQUENCES, LENGTH, generator=generator, dtype=torch.float64)

    behavior_BL = -3.0 * uniform()
    log_ratio_BL = 0.9 * normal()
    for bound in (RATIO_LOW, DUAL_CLIP, RATIO_HIGH):
        is_near = (log_ratio_BL.exp() - bound).abs() < MARGIN
        log_ratio_BL = torch.where(is_near, log_ratio_BL + 0.1, log_ratio_BL)
    advantages_BL = normal()[:, :1].expand(NUM_SEQUENCES, LENGTH).clone()
    return {
        "logprobs": behavior_BL + log_ratio_BL,
        "behavior_logprobs": behavior_BL,
        "advantages": advantages_BL,
        "generated_mask": uniform() < 0.75,
    }


def verl_loss(batch: dict[str, Tensor], logprobs_BL: Tensor, num_generated: int) -> Tensor:
    """verl's loss with the settings of Eq. 19."""
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio=1.0,
        clip_ratio_low=1.0,
        clip_ratio_high=UNBOUNDED,
        clip_ratio_c=DUAL_CLIP,
        global_batch_info={"batch_num_tokens": num_generated},
        policy_loss=PolicyLossConfig(
            rollout_correction={
                "loss_type": "ppo_clip",
                "rollout_rs": "token_k1",
                "rollout_rs_threshold": f"{1 / RATIO_HIGH}_{1 / RATIO_LOW}",
            }
        ),
    )
    loss, _ = compute_policy_loss_bypass_mode(
        old_log_prob=batch["behavior_logprobs"],
        log_prob=logprobs_BL,
        advantages=batch["advantages"],
        response_mask=batch["generated_mask"].double(),
        loss_agg_mode="token-mean",
        config=config,
    )
    return loss


def areal_loss(batch: dict[str, Tensor], logprobs_BL: Tensor, num_generated: int) -> Tensor:
    """AReaL's loss; what it has no setting for, the ratio filter, is done to its advantages."""
    ratio_BL = (logprobs_BL.detach() - batch["behavior_logprobs"]).exp()
    is_kept_BL = (ratio_BL > RATIO_LOW) & (ratio_BL < RATIO_HIGH)
    return _areal(batch, logprobs_BL, num_generated, batch["advantages"] * is_kept_BL)


def areal_decoupled_loss(
    batch: dict[str, Tensor], logprobs_BL: Tensor, num_generated: int
) -> Tensor:
    """AReaL's decoupled loss: clip against the proximal policy, then weight by it."""
    filtering = RejectionSamplingConfig(
        level="token", action="mask", metric="ratio", lower=RATIO_LOW, upper=RATIO_HIGH
    )
    return _areal(batch, logprobs_BL, num_generated, batch["advantages"], filtering)


def _areal(
    batch: dict[str, Tensor],
    logprobs_BL: Tensor,
    num_generated: int,
    advantages_BL: Tensor,
    filtering: RejectionSamplingConfig | None = None,
) -> Tensor:
    behavior_BL, mask_BL = batch["behavior_logprobs"], batch["generated_mask"]
    loss, _ = ppo_actor_loss_fn(
        logprobs=logprobs_BL,
        proximal_logprobs=behavior_BL if filtering is None else logprobs_BL.detach(),
        old_logprobs=behavior_BL,
        advantages=advantages_BL,
        eps_clip=1.0,
        eps_clip_higher=UNBOUNDED,
        c_clip=DUAL_CLIP,
        loss_mask=mask_BL,
        rejection_sampling=filtering,
    )
    # It divides by its own tokens; its trainer then weights by them.
    return loss * int(mask_BL.sum()) / num_generated


def answer(loss: Loss, batch: dict[str, Tensor], num_generated: int) -> dict[str, Any]:
    """Loss and its gradient in the log-probabilities."""
    logprobs_BL = batch["logprobs"].clone().requires_grad_()
    value = loss(batch, logprobs_BL, num_generated)
    (gradient_BL,) = torch.autograd.grad(value, logprobs_BL)
    return {"loss": value.item(), "gradient": gradient_BL.flatten().tolist()}


def golden() -> dict[str, Any]:
    """The whole file."""
    generator = torch.Generator().manual_seed(18)
    batches = []
    for number in range(NUM_BATCHES):
        batch = random_batch(generator)
        # Every other batch is a micro-batch: the iteration has more generated tokens than it.
        num_generated = int(batch["generated_mask"].sum()) + 13 * (number % 2)
        batches.append(
            {
                "num_generated_tokens": num_generated,
                **{name: values.flatten().tolist() for name, values in batch.items()},
                "verl": answer(verl_loss, batch, num_generated),
                "areal": answer(areal_loss, batch, num_generated),
                "areal_decoupled": answer(areal_decoupled_loss, batch, num_generated),
            }
        )
    return {
        "made_by": "make oracle",
        "versions": {name: version(name) for name in ("verl", "areal")},
        "dual_clip": DUAL_CLIP,
        "ratio_low": RATIO_LOW,
        "ratio_high": RATIO_HIGH,
        "batches": batches,
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    output.write_text(json.dumps(golden()) + "\n", encoding="utf-8")
    print(f"{NUM_BATCHES} batches written to {output}")


if __name__ == "__main__":
    main()
