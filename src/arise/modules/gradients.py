"""Gradient norm and clipping of parameters that are spread over ranks in different ways."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to a global norm; collective.

        g ← g · min(1, max_norm / ‖g‖),  ‖g‖ over all parameters, whole, wherever their pieces are

    Args:
        parameters: Each with a gradient.
        max_norm: Largest norm.

    Returns:
        ‖g‖ before; the same on every rank, and that of one process.
    """
    groups = list(_by_mesh(parameters).values())
    norms = [_norm(group) for group in groups]
    if len(norms) == 1:
        total = norms[0]
    else:
        total = norms[0].new_tensor(math.hypot(*(float(norm) for norm in norms)))
    for group in groups:
        clip_grads_with_norm_(group, max_norm, total)
    return float(total)


def keep_meshes_apart(optimizer: Optimizer) -> None:
    """Step parameter by parameter if they lie on different meshes: one call cannot have both."""
    for group in optimizer.param_groups:
        if len(_by_mesh(group["params"])) > 1:
            group["foreach"] = False


def _by_mesh(parameters: Iterable[nn.Parameter]) -> dict[Any, list[nn.Parameter]]:
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return groups


def _norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
