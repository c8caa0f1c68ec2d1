"""Our loss against what two public implementations computed; `make oracle` rewrites the file."""

import json
from pathlib import Path

import pytest
import torch

from arise.algorithms.losses import dual_clipped_loss

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "data" / "oracle_golden.json").read_text(encoding="utf-8")
)


def compare(batch, oracle, order):
    """Largest gradient difference, loss difference, and what our loss saw."""

    def tensor(name):
        return torch.tensor(batch[name], dtype=torch.float64)

    logprobs = tensor("logprobs").requires_grad_()
    result = dual_clipped_loss(
        logprobs,
        tensor("behavior_logprobs"),
        tensor("advantages"),
        torch.tensor(batch["generated_mask"]),
        loss_order=order,
        dual_clip=GOLDEN["dual_clip"],
        ratio_low=GOLDEN["ratio_low"],
        ratio_high=GOLDEN["ratio_high"],
        num_generated_tokens=batch["num_generated_tokens"],
    )
    result.loss.backward()
    expected = torch.tensor(batch[oracle]["gradient"], dtype=torch.float64)
    difference = (logprobs.grad - expected).abs().max().item()
    return difference, abs(result.loss.item() - batch[oracle]["loss"]), result.statistics


@pytest.mark.parametrize("oracle", ["verl", "areal"])
def test_gradients_and_losses_agree(oracle):
    assert len(GOLDEN["batches"]) >= 20
    for batch in GOLDEN["batches"]:
        gradient, loss, _ = compare(batch, oracle, "arise")
        assert gradient <= 1e-12
        assert loss <= 1e-12


def test_the_other_order_agrees_with_areal_decoupled():
    """AReaL computes exp(log ω) in float32 there: relative error 6e-8 of gradients below 0.5."""
    worst = max(compare(b, "areal_decoupled", "areal")[0] for b in GOLDEN["batches"])
    assert worst <= 1e-7
    # The file would notice the wrong order: there are dual-clipped tokens.
    wrong = max(compare(b, "areal_decoupled", "arise")[0] for b in GOLDEN["batches"])
    assert wrong > 1e-2


def test_the_batches_exercise_every_branch():
    statistics = [compare(batch, "verl", "arise")[2] for batch in GOLDEN["batches"]]
    for name in ("num_masked_low", "num_masked_high", "num_dual_clipped"):
        assert sum(int(getattr(seen, name)) for seen in statistics) >= 20
    assert any(b["num_generated_tokens"] > sum(b["generated_mask"]) for b in GOLDEN["batches"])
    assert all(not all(batch["generated_mask"]) for batch in GOLDEN["batches"])
