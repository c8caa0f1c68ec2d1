"""Tiny models of the architectures that are trained, and loaders that give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}


def llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SIZES | {"tie_word_embeddings": False} | changes))


def qwen3(**changes: Any) -> PreTrainedModel:
    options = {"head_dim": 16, "tie_word_embeddings": True}
    return Qwen3ForCausalLM(Qwen3Config(**_SIZES | options | changes))


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=264, n_embd=32, n_layer=2, n_head=4))


def qwen3_5(**changes: Any) -> PreTrainedModel:
    """Every second layer is linear attention."""
    options = {
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**_SIZES | options | changes))


def qwen3_moe(**changes: Any) -> PreTrainedModel:
    """Four experts, two of them for each token."""
    options = {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SIZES | options | changes))


@dataclass(frozen=True)
class Toy:
    """A loader of a model that is the same on every rank."""

    factory: Callable[[], PreTrainedModel]

    def model(self) -> PreTrainedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return self.factory()

    def empty_model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        return self.factory().to(dtype)

    def tokenizer(self) -> Any:
        raise NotImplementedError("token ids are given")
