"""Low-rank adapters: a frozen model with small trained matrices, merged for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from arise.errors import ConfigError

_ADAPTER = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """Which layers get adapters W + (α / rank) · B A.

    Attributes:
        rank: Rows of A and columns of B, 1 or more.
        alpha: α, 1 or more.
        target_modules: Names of linear layers, or `"all-linear"`: all but the output head.
        seed: Seed of A; B starts at 0, so training starts from the model as it is.
    """

    rank: int
    alpha: int
    target_modules: str | Sequence[str]
    seed: int


def add_adapters(model: PreTrainedModel, options: LoraOptions) -> None:
    """Freeze the model and put adapters into it; its function does not change.

    Every rank makes the same adapters, and the global generator is left alone.

    Raises:
        ConfigError: `peft` is missing, a value is out of range, no layer has such a name, or the
            embedding or output head was chosen: the head's weight is read without its adapter.
    """
    if options.rank < 1:
        raise ConfigError(f"model.lora.rank is {options.rank}; it must be 1 or more, or 0 for off")
    if options.alpha < 1:
        raise ConfigError(f"model.lora.alpha is {options.alpha}; it must be 1 or more")
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            "model.lora.rank: adapters need the package peft; run: pip install 'arise[lora]'"
        ) from error
    targets = options.target_modules
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.0,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        try:
            inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
        except ValueError as error:
            raise ConfigError(f"model.lora.target_modules: {error}") from error
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if hasattr(module, "lora_A"):
            raise ConfigError(
                f"model.lora.target_modules = {targets} names the embedding or the output head, "
                "which cannot have an adapter; choose layers of the decoder, or all-linear"
            )


def merged_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors of a model with adapters under the names and with the values of a plain one.

    Args:
        model: The model; says which layers have adapters.
        tensors: Its full tensors by name, adapters among them.

    Returns:
        W + (α / rank) · B A in place of the layers' three matrices, everything else as it was.
        Without adapters: the tensors as they came.
    """
    layers: dict[str, Any] = {
        name: module for name, module in model.named_modules() if hasattr(module, "base_layer")
    }
    result = {}
    for name, tensor in tensors.items():
        layer, is_base, rest = name.partition(".base_layer.")
        if is_base and layer in layers:
            is_weight = rest == "weight"
            update = _update(layer, layers[layer], tensors) if is_weight else 0.0
            result[f"{layer}.{rest}"] = tensor + update
        elif not any(part.startswith("lora_") for part in name.split(".")):
            result[name] = tensor
    return result


def _update(name: str, layer: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    a_RI = tensors[f"{name}.lora_A.{_ADAPTER}.weight"]
    b_OR = tensors[f"{name}.lora_B.{_ADAPTER}.weight"]
    update_OI = layer.scaling[_ADAPTER] * (b_OR @ a_RI)
    # GPT-2 stores its linear layers transposed.
    return update_OI.T if layer.fan_in_fan_out else update_OI
