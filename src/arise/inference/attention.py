"""Attention of a few new tokens over cached keys, for models that ask for it by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

SLOT_ATTENTION = "arise_slots"


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Decode steps as two batched matrix products, anything longer through torch's SDPA.

    With one query per row the fused kernels spend most of their time on set-up, and they need
    grouped heads repeated in memory; products over the group dimension need neither.

    Args:
        module: The attention layer that calls.
        query: float[B, heads, Q, D].
        key: float[B, kv_heads, K, D].
        value: float[B, kv_heads, K, D].
        attention_mask: Additive float[B, 1, Q, K].
        scaling: Factor on the scores; 1/√D if not given.
        dropout: Not used in decode steps: this is inference.
        **kwargs: What else the model passes along.

    Returns:
        float[B, Q, heads, D] and no weights.
    """
    if query.shape[2] != 1 or attention_mask is None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    batch, heads, _, size = query.shape
    kv_heads = key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    grouped = (query * scale).view(batch, kv_heads, heads // kv_heads, size)
    scores = torch.matmul(grouped, key.transpose(2, 3))
    weights = scores.add_(attention_mask).softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
