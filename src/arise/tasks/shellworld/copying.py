"""Initial weights in which the policy can copy already.

Looking up what followed the last occurrence of a token takes two attention layers that are of no
use alone, so a random start learns it only after a long plateau. Here the two are set by hand and
training refines them:

- Layer 0, head 0 attends to the previous position and writes a projection of its token into a
  subspace that embeddings leave free.
- Layer 1, heads 0 and 1 compare that subspace with the current token, so they attend to what
  followed its earlier occurrences, and write this token's embedding into the residual stream.

All embeddings share one constant component, from which position-only queries are made.
"""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

ROPE_THETA = 1e6
"""A large base leaves most rotary pairs nearly unrotated over an episode, for matching content."""

_SCALE = 0.25
_POSITION_SHARPNESS = 45.0
_MATCH = 2.0
_COPY = 2.5
_FIRST_CONTENT_PAIR = 5
_NUM_PREVIOUS = 32


def _frequencies(head_dim: int) -> torch.Tensor:
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32)
    return ROPE_THETA ** (-pairs / head_dim)


def _rows(count: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Orthonormal rows, float32[count, size]."""
    square = torch.randn(size, size, generator=generator)
    return torch.linalg.qr(square).Q[:count]


@torch.no_grad()
def seed_copying(model: LlamaForCausalLM, seed: int) -> None:
    """Overwrite embeddings and three heads of `model`.

    Args:
        model: At least two layers, two heads of width 32 or more, hidden size 96 or more, and
            `ROPE_THETA` as its rotary base.
        seed: Of the random projections.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    hidden, head = config.hidden_size, config.hidden_size // config.num_attention_heads
    half, size = head // 2, hidden - _NUM_PREVIOUS - 1
    constant = (hidden / 2) ** 0.5
    words, previous = slice(1, 1 + size), slice(1 + size, hidden)

    table = model.model.embed_tokens.weight
    table.zero_()
    table[:, 0] = constant
    identity = torch.randn(config.vocab_size, size, generator=generator)
    table[:, words] = constant * identity / identity.norm(dim=1, keepdim=True)
    table.mul_(_SCALE)

    # Pair i turns by frequency i per position: a query turned back by one matches position p - 1.
    angle = _frequencies(head)
    first = model.model.layers[0].self_attn
    weight = torch.zeros(half)
    weight[:4] = torch.tensor([1.0, 0.8, 0.6, 0.4])
    size_of = (weight * _POSITION_SHARPNESS).sqrt() / constant
    for matrix in (first.q_proj.weight, first.k_proj.weight, first.v_proj.weight):
        matrix[:head].zero_()
    first.q_proj.weight[:half, 0] = size_of * angle.cos()
    first.q_proj.weight[half:head, 0] = -size_of * angle.sin()
    first.k_proj.weight[:half, 0] = size_of
    projection = _rows(_NUM_PREVIOUS, size, generator)
    first.v_proj.weight[:_NUM_PREVIOUS, words] = projection
    first.o_proj.weight[:, :head].zero_()
    first.o_proj.weight[previous, :_NUM_PREVIOUS] = _SCALE * torch.eye(_NUM_PREVIOUS)

    second = model.model.layers[1].self_attn
    slow = [*range(_FIRST_CONTENT_PAIR, half), *range(half + _FIRST_CONTENT_PAIR, head)]
    copied = _rows(size, size, generator)
    for number, part in enumerate((copied[:head], copied[head:])):
        rows = slice(number * head, (number + 1) * head)
        for matrix in (second.q_proj.weight, second.k_proj.weight, second.v_proj.weight):
            matrix[rows].zero_()
        for row, place in enumerate(slow):
            second.q_proj.weight[number * head + place, words] = _MATCH * projection[row]
            second.k_proj.weight[number * head + place, 1 + size + row] = _MATCH
        start = number * head
        second.v_proj.weight[start : start + len(part), words] = part
        second.o_proj.weight[:, rows].zero_()
        second.o_proj.weight[words, start : start + len(part)] = _SCALE * _COPY * part.T
