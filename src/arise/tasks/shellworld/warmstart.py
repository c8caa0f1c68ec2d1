"""Supervised warm start of the tiny policy on synthetic transcripts."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from arise.tasks.shellworld.batches import Batch, Sample, by_length, copy_samples
from arise.tasks.shellworld.copying import ROPE_THETA, seed_copying
from arise.tasks.shellworld.episode import CONTEXT_TOKENS
from arise.tasks.shellworld.tokenizer import encode_messages
from arise.tasks.shellworld.transcripts import Transcript

_CONTEXT_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """The recipe.

    Attributes:
        num_transcripts: Demonstrations, each seen once per epoch.
        epochs: Passes over them.
        copy_share: Share of the updates, at the beginning, that are copying exercises.
        batch_tokens: Tokens per update; larger batches give too few updates.
        lr: Peak learning rate of AdamW.
        warmup_steps: Linear warm-up.
        decay_share: Share of the updates, at the end, over which the rate falls to zero.
        weight_decay: Of AdamW.
        context_weight: Loss weight of tokens that are not the assistant's.
        hidden: Width.
        layers: Number of layers.
        heads: Number of attention heads.
        feed_forward: Width of the feed-forward layer.
        init_std: Standard deviation of the initial weights, apart from those of `seed_copying`;
            with 0.1 instead their noise drowns the copying heads.
    """

    num_transcripts: int = 100_000
    epochs: int = 1
    copy_share: float = 0.02
    batch_tokens: int = 2048
    lr: float = 4e-3
    warmup_steps: int = 60
    decay_share: float = 0.35
    weight_decay: float = 0.05
    context_weight: float = 0.1
    hidden: int = 96
    layers: int = 3
    heads: int = 3
    feed_forward: int = 256
    init_std: float = 0.02


def new_model(recipe: WarmStart, tokenizer: Any) -> LlamaForCausalLM:
    """A randomly initialised policy; seed torch before."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden,
            intermediate_size=recipe.feed_forward,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=CONTEXT_TOKENS,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            initializer_range=recipe.init_std,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def to_sample(
    transcript: Transcript, tokenizer: Any, context_weight: float, rng: random.Random
) -> Sample:
    """A transcript as tokens, with full weight on what the assistant says.

    A quarter of the other tokens, drawn at random, carry the weight of all of them: most of the
    work of so small a model is the prediction over its vocabulary.
    """
    ids, generated = encode_messages(tokenizer, transcript.messages)
    heavy = context_weight / _CONTEXT_SHARE
    weights = [1.0 if mine else heavy * (rng.random() < _CONTEXT_SHARE) for mine in generated]
    return Sample(ids=ids, weights=weights)


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted mean of the cross-entropy of each next token."""
    targets, weights = batch.input_ids[:, 1:], batch.weights[:, 1:]
    keep = weights > 0
    hidden = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state[:, :-1]
    losses = F.cross_entropy(model.lm_head(hidden[keep]), targets[keep], reduction="none")
    return (losses * weights[keep]).sum() / weights[keep].sum()


def _rate(recipe: WarmStart, step: int, steps: int) -> float:
    decay_from = int(steps * (1 - recipe.decay_share))
    falling = (steps - step) / max(1, steps - decay_from)
    return recipe.lr * min(1.0, (step + 1) / recipe.warmup_steps, falling)


def _plan(
    recipe: WarmStart, transcripts: Sequence[Transcript], tokenizer: Any, rng: random.Random
) -> list[Batch]:
    """All updates in order: copying exercises, then the demonstrations."""
    pad = tokenizer.pad_token_id
    samples = [to_sample(t, tokenizer, recipe.context_weight, rng) for t in transcripts]
    batches: list[Batch] = []
    for _ in range(recipe.epochs):
        batches += by_length(samples, recipe.batch_tokens, pad, rng)
    num_copy = round(len(batches) * recipe.copy_share / (1 - recipe.copy_share))
    exercises = copy_samples(tokenizer, num_copy * recipe.batch_tokens // 40, rng)
    return [*list(by_length(exercises, recipe.batch_tokens, pad, rng))[:num_copy], *batches]


def train(
    recipe: WarmStart, transcripts: Sequence[Transcript], tokenizer: Any, seed: int
) -> tuple[LlamaForCausalLM, Iterator[str]]:
    """A model and an iterator that trains it and reports progress.

    Args:
        recipe: Sizes and rates.
        transcripts: Demonstrations.
        tokenizer: From `build_tokenizer`.
        seed: Seeds weights and order.
    """
    torch.manual_seed(seed)
    model = new_model(recipe, tokenizer)
    seed_copying(model, seed)
    return model, _run(recipe, model, _plan(recipe, transcripts, tokenizer, random.Random(seed)))


def _run(recipe: WarmStart, model: LlamaForCausalLM, batches: list[Batch]) -> Iterator[str]:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    started, tokens, losses = time.monotonic(), 0, [math.nan]
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = _rate(recipe, step, len(batches))
        loss = batch_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += batch.num_tokens
        losses.append(loss.detach().item())
        if (step + 1) % 100 == 0 or step + 1 == len(batches):
            recent = losses[-100:]
            yield (
                f"update {step + 1}/{len(batches)}  loss {sum(recent) / len(recent):.3f}  "
                f"{tokens / 1e6:.2f}M tokens  {time.monotonic() - started:.0f} s"
            )
