"""Which models the slot cache can play: by their configuration, and by trying."""

from __future__ import annotations

import copy
from threading import Event
from typing import Any

import torch
from transformers import PreTrainedModel

from arise.errors import ConfigError
from arise.inference.attention import SLOT_ATTENTION
from arise.inference.base import SamplingParams
from arise.inference.generation import Draft, SlotGenerator
from arise.inference.slot_cache import SlotCache, SlotTable

_MOVING_ROPE = ("dynamic", "longrope")


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of token ids the model can embed."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0]


def check_model(model: PreTrainedModel, max_context_tokens: int) -> None:
    """Refuse a model that an engine cannot play.

    Raises:
        ConfigError: It is no causal language model, or its positions end before the context does.
    """
    config = model.config.get_text_config()
    if getattr(model.config, "is_encoder_decoder", False) or not model.get_output_embeddings():
        raise ConfigError(
            f"engine.model must build a causal language model, got {type(model).__name__}"
        )
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and max_context_tokens > limit:
        raise ConfigError(
            f"engine.max_context_tokens={max_context_tokens} exceeds the model's "
            f"max_position_embeddings of {limit}"
        )


def why_not_slots(model: PreTrainedModel) -> str | None:
    """Why the slot cache cannot play this model; `None` if it can, with its attention set up.

    The configuration rules out what a short probe cannot show; the probe rules out the rest, by
    comparing batched, cached, left-padded passes with single plain ones.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return f"its layers are {', '.join(sorted(kinds))}"
    if not kinds and getattr(config, "sliding_window", None):
        return "its attention has a sliding window"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPE:
        return f"its {rope['rope_type']} rotary embedding depends on the longest batch mate"
    _own_config(model)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(SLOT_ATTENTION)
        gap, tolerance = _probe(model)
        reason = f"cached passes differ from plain ones by {gap:.2g}" if gap > tolerance else None
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        reason = f"its forward pass does not take a slot cache ({type(error).__name__}: {error})"
    if reason is not None:
        model.set_attn_implementation(before)
    return reason


def _own_config(model: PreTrainedModel) -> None:
    """Give the model configuration objects that it shares with no other model."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        config = getattr(module, "config", None)
        if id(config) in copies:
            module.config = copies[id(config)]


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> tuple[float, float]:
    """Largest gap of cached to plain log-probabilities on fixed input, and what rounding allows.

    Two sessions of different lengths, two turns each, against one plain pass per row.
    """
    cache = SlotCache(max_slots=2, max_tokens=32)
    generator = SlotGenerator(model, SlotTable(cache, max_sessions=2), cache)
    vocabulary = vocabulary_size(model)
    prompts: list[list[int]]
    prompts = [[(7 * i + 3) % vocabulary for i in range(9)], [(5 * i) % vocabulary for i in (1, 2)]]
    gap = scale = 0.0
    for _ in range(2):
        drafts = [
            Draft(session=(0, row), prompt=prompt, sampling=SamplingParams(seed=row), limit=3)
            for row, prompt in enumerate(prompts)
        ]
        generator.run(drafts, Event())
        for draft in drafts:
            ids = torch.tensor([draft.prompt + draft.token_ids], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, -4:-1].double()
            plain = logits.log_softmax(-1).gather(-1, ids[0, -3:, None])[:, 0].tolist()
            pairs = zip(draft.logprobs, plain, strict=True)
            gap = max(gap, *(abs(cached - expected) for cached, expected in pairs))
            scale = max(scale, logits.abs().max().item())
        prompts = [d.prompt + d.token_ids + [1, 0][: 1 + d.session[1]] for d in drafts]
    return gap, max(1e-4, 4 * torch.finfo(model.dtype).eps * scale)
