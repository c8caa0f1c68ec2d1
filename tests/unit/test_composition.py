"""What is configured is what computes."""

import math
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from arise.algorithms.losses import dual_clipped_loss
from arise.app import Run
from runs import TINY, compose_config


@pytest.mark.parametrize(("override", "expected"), [((), 3.0), (("algorithm.dual_clip=2",), 2.0)])
def test_C03_the_configured_dual_clip_is_the_one_of_the_loss(
    override: tuple[str, ...], expected: float
) -> None:
    """ω = 4.9, A = -1: min(-ωA, κ|A|) = κ."""
    cfg = compose_config(*TINY, *override)
    OmegaConf.resolve(cfg)
    module = Run._module(SimpleNamespace(cfg=cfg, loader=None))  # type: ignore[arg-type]
    result = dual_clipped_loss(
        torch.tensor([math.log(4.9)], dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([-1.0], dtype=torch.float64),
        torch.tensor([True]),
        num_generated_tokens=1,
        **module._loss_options,
    )
    assert result.loss.item() == expected
