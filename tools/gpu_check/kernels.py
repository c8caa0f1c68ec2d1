"""Kernels that only a GPU runs, against plain computations."""

from __future__ import annotations

import itertools

import torch
from scale import GIB, Scale, Table, difference, now, peak, reset_peak
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from arise.algorithms.attention import span_attention
from arise.algorithms.logprobs import token_logprobs


def check_attention(scale: Scale, table: Table) -> None:
    """Packed rows, forward and backward, against float32 SDPA of each sequence alone."""
    heads, kv_heads = scale.model["num_attention_heads"], scale.model["num_key_value_heads"]
    total, size = sum(scale.row_tokens), scale.model["head_dim"]
    generator = torch.Generator(scale.device).manual_seed(0)

    def random_heads(number: int) -> Tensor:
        values = torch.randn(1, number, total, size, generator=generator, device=scale.device)
        return values.to(getattr(torch, scale.dtype))

    given = [random_heads(number) for number in (heads, kv_heads, kv_heads, heads)]
    query, key, value = (values.clone().requires_grad_() for values in given[:3])
    bounds = [0, *itertools.accumulate(scale.row_tokens)]
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device=scale.device)
    output, _ = span_attention(nn.Identity(), query, key, value, None, cu_seq_lens_q=cu_seqlens)
    output.backward(given[3].transpose(1, 2))
    worst = [0.0, 0.0]
    for start, end in itertools.pairwise(bounds):
        alone = [values[:, :, start:end].float().requires_grad_() for values in given[:3]]
        # Heads are repeated by hand: with `enable_gqa`, float32 would make all scores at once.
        repeated = [heads_of(values, heads) for values in alone]
        expected = scaled_dot_product_attention(*repeated, is_causal=True)
        expected.backward(given[3][:, :, start:end].float())
        ours = output.transpose(1, 2)[:, :, start:end]
        worst[0] = max(worst[0], difference(ours, expected))
        for mine, theirs in zip((query, key, value), alone, strict=True):
            assert mine.grad is not None
            worst[1] = max(worst[1], difference(mine.grad[:, :, start:end], theirs.grad))
    table.add("packed attention, relative error", worst[0], limit=scale.attention_error)
    table.add("its gradient, relative error", worst[1], limit=scale.attention_error)


def heads_of(values: Tensor, number: int) -> Tensor:
    """As many heads as queries have."""
    return values.repeat_interleave(number // values.shape[1], dim=1)


def check_logprobs(scale: Scale, table: Table) -> None:
    """Log-probabilities in tiles against `log_softmax` of all logits in float32."""
    generator = torch.Generator(scale.device).manual_seed(1)
    dtype = getattr(torch, scale.dtype)
    shape = (scale.scored_tokens, scale.model["hidden_size"])
    hidden = torch.randn(shape, generator=generator, device=scale.device).to(dtype)
    weight = (
        torch.randn(scale.vocabulary, shape[1], generator=generator, device=scale.device)
        .mul_(shape[1] ** -0.5)
        .to(dtype)
    )
    targets = torch.randint(scale.vocabulary, shape[:1], generator=generator, device=scale.device)
    results = []
    for is_plain in (False, True):
        inputs = [values.clone().requires_grad_() for values in (hidden, weight)]
        before = reset_peak(scale)
        start = now(scale)
        if is_plain:
            logits = (inputs[0].float() @ inputs[1].float().T) / 0.9
            logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
        else:
            logprobs, _ = token_logprobs(
                *inputs, targets, temperature=0.9, chunk_tokens=scale.chunk_tokens
            )
        logprobs.sum().backward()
        name = "plain log-probabilities" if is_plain else "log-probabilities in tiles"
        table.add(f"{name}, time", now(scale) - start, "s ")
        table.add(f"{name}, memory", (peak(scale) - before) / GIB, "GiB ")
        results.append((logprobs.detach(), inputs[0].grad, inputs[1].grad))
    names = ("log-probabilities", "gradient of hidden states", "gradient of the head")
    for name, ours, plain in zip(names, *results, strict=True):
        table.add(f"{name}, relative error", difference(ours, plain), limit=scale.logprob_error)
