"""Training throughput of packed rows against right-padded rows, on rows of uneven length.

Forward and backward of a small Llama over the same rows, three ways: right-padded with SDPA, packed
with the library's block mask, packed with one SDPA call per span. Prints seconds and the ratios
padded / packed and block mask / packed (above 1: spans are faster).

    python benchmarks/packing.py --rows 32 --max-length 1024 --max-tokens 4096
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from arise.algorithms.attention import SPAN_ATTENTION, register_span_attention, span_arguments
from arise.algorithms.packing import PackedBatch, WeightedRow, pack, padded, to_padded
from arise.types import TokenRow

VOCAB = 512


def make_rows(count: int, max_length: int) -> list[WeightedRow]:
    generator = torch.Generator().manual_seed(0)
    # Squared uniforms: many short trajectories and a few long ones.
    lengths = torch.rand(count, generator=generator).square().mul(max_length).long().clamp(min=2)
    return [
        WeightedRow(
            row=TokenRow(
                token_ids=tuple(torch.randint(VOCAB, (n,), generator=generator).tolist()),
                generated_mask=(False,) + (True,) * (n - 1),
                logprobs=(0.0,) * n,
                policy_versions=(0,) * n,
            ),
            advantage=1.0,
        )
        for n in lengths.tolist()
    ]


def make_model(hidden: int, layers: int, max_length: int, device: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=max_length,
    )
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = LlamaForCausalLM(config)
    torch.nn.Module.to(model, device, dtype)
    return model


def spans_loss(model: LlamaForCausalLM, batch: PackedBatch) -> Tensor:
    logits = model(
        batch.input_ids[None],
        position_ids=batch.position_ids[None],
        **span_arguments(batch.cu_seqlens),
    ).logits[0]
    return logits.float().logsumexp(-1).sum()


def block_mask_loss(model: LlamaForCausalLM, batch: PackedBatch) -> Tensor:
    logits = model(
        batch.input_ids[None],
        position_ids=batch.position_ids[None],
        attention_mask=None,
        use_cache=False,
    ).logits[0]
    return logits.float().logsumexp(-1).sum()


def padded_loss(model: LlamaForCausalLM, batch: PackedBatch) -> Tensor:
    input_ids, attention_mask, index = to_padded(batch)
    logits = model(input_ids, attention_mask=attention_mask, use_cache=False).logits
    return logits.flatten(0, 1)[index].float().logsumexp(-1).sum()


def seconds(
    model: LlamaForCausalLM,
    attention: str,
    loss: Callable[[LlamaForCausalLM, PackedBatch], Tensor],
    batches: list[PackedBatch],
    repeats: int,
) -> tuple[float, float]:
    """Best time of one pass over all batches, and the loss, which must not depend on the way."""
    model.set_attn_implementation(attention)
    times, total = [], 0.0
    for _ in range(repeats + 1):
        model.zero_grad()
        start, total = time.perf_counter(), 0.0
        for batch in batches:
            value = loss(model, batch)
            value.backward()
            total += value.item()
        times.append(time.perf_counter() - start)
    return min(times[1:]), total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--max-tokens", type=int, default=8192, help="budget of a micro-batch")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    register_span_attention()
    rows = make_rows(args.rows, args.max_length)
    model = make_model(args.hidden, args.layers, args.max_length, args.device)
    packed = [batch.to(args.device) for batch in pack(rows, max_tokens=args.max_tokens)]
    in_rows = [batch.to(args.device) for batch in padded(rows, max_tokens=args.max_tokens)]
    ways = {
        "padded": ("sdpa", padded_loss, in_rows),
        "block mask": ("sdpa", block_mask_loss, packed),
        "spans": (SPAN_ATTENTION, spans_loss, packed),
    }
    num_tokens = sum(batch.num_tokens for batch in packed)
    results = {}
    for name, (attention, loss, batches) in ways.items():
        results[name], value = seconds(model, attention, loss, batches, args.repeats)
        print(
            f"{name:>10}: {results[name]:.3f} s, {num_tokens / results[name]:,.0f} tokens/s, "
            f"{len(batches)} micro-batches, loss {value / num_tokens:.6f}"
        )
    print(f"ratio padded / spans: {results['padded'] / results['spans']:.2f}")
    print(f"ratio block mask / spans: {results['block mask'] / results['spans']:.2f}")


if __name__ == "__main__":
    main()
