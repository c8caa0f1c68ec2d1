"""Activations that wait for the backward pass in the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from arise.errors import ConfigError


def offload_checkpoints(model: PreTrainedModel) -> None:
    """Keep the inputs of checkpointed layers on the host: layers · T · H values less on the device.

    Args:
        model: With activation checkpointing enabled.

    Raises:
        ConfigError: No layer of the model checkpoints its activations.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    checkpointed: list[Any] = [layer for layer in layers if layer.gradient_checkpointing]
    if not checkpointed:
        raise ConfigError(
            "model.cpu_offload keeps checkpointed activations on the host, but no layer of "
            f"{type(model).__name__} has any; set model.activation_checkpointing=true"
        )
    for layer in checkpointed:
        layer._gradient_checkpointing_func = _offloaded(layer._gradient_checkpointing_func)


def _offloaded(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # What the layer computes inside is saved under the checkpoint's own hooks.
        with save_on_cpu(pin_memory=torch.cuda.is_available()):
            return checkpoint(function, *args, **kwargs)

    return run
