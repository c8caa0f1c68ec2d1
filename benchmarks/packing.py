"""Training throughput of packed rows against right-padded rows, on rows of really played lengths.

Forward and backward of `PolicyLM`, head included, over the same rows: right-padded with SDPA,
packed with one SDPA call per span (on CUDA one FlashAttention kernel) and, with `--block-mask`,
packed with the library's block mask. The ways take turns; the first round warms up. Prints
training tokens (real ones) per second, the share of padding, and medians of the ratios (above 1:
spans are faster). On a CPU the goal is 1: the matrix products of padding are saved, but attention
runs span by span; one kernel for all of them is a GPU's.

    python benchmarks/packing.py                              # the bundled policy, 64 episodes
    python benchmarks/packing.py --trajectories outputs/arise/*/trajectories/step_000030.jsonl.gz
    python benchmarks/packing.py --heavy-tail 64 --hidden 128 --layers 2 --max-length 1024
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from real_rows import play, read
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from arise.algorithms.packing import PackedBatch, WeightedRow, pack, padded, to_padded
from arise.modules.loading import PackagedModel
from arise.modules.policy_lm import PolicyLM
from arise.types import TokenRow

VOCAB = 512


def heavy_tail(count: int, max_length: int) -> list[WeightedRow]:
    """Squared uniforms: many short rows and a few long ones."""
    generator = torch.Generator().manual_seed(0)
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


def make_model(args: argparse.Namespace) -> PreTrainedModel:
    torch.manual_seed(0)
    if args.hidden is None:
        return PackagedModel("arise.tasks.shellworld", "policy").model()
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 32,
        num_key_value_heads=args.hidden // 64,
        max_position_embeddings=args.max_length,
    )
    return LlamaForCausalLM(config)


def make_policy(layout: str, args: argparse.Namespace) -> PolicyLM:
    policy = PolicyLM(
        make_model(args),
        temperature=1.0,
        chunk_tokens=1024,
        layout=layout,
        activation_checkpointing=False,
    )
    return policy.to(args.device, torch.bfloat16 if args.device == "cuda" else torch.float32)


class BlockMask(PolicyLM):
    """Packed rows with the library's attention, which builds a [T, T] mask from positions."""

    def _hidden_states(self, batch: PackedBatch) -> Tensor:
        output = self.model.base_model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            attention_mask=None,
            use_cache=False,
        )
        return output.last_hidden_state[0]


def timed(policy: PolicyLM, batches: list[PackedBatch], device: str) -> tuple[float, float]:
    """Seconds of one pass over all batches, and the sum of log-probabilities."""
    policy.zero_grad()
    start, total = time.perf_counter(), 0.0
    for batch in batches:
        logprobs, _ = policy(batch)
        logprobs.sum().backward()
        total += logprobs.sum().item()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=Path, help="a step of a run; default: play one")
    parser.add_argument("--heavy-tail", type=int, metavar="ROWS", help="random rows instead")
    parser.add_argument("--max-length", type=int, default=1024, help="of random rows")
    parser.add_argument("--max-tokens", type=int, default=8192, help="budget of a micro-batch")
    parser.add_argument("--hidden", type=int, help="width of a random Llama instead of the policy")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--block-mask", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.heavy_tail:
        rows = heavy_tail(args.heavy_tail, args.max_length)
    else:
        played = read(args.trajectories) if args.trajectories else play()
        rows = [row.weighted for row in played]
    policies = {"padded": make_policy("rows", args), "spans": make_policy("packed", args)}
    if args.block_mask:
        policies["block mask"] = make_policy("rows", args)
        policies["block mask"].__class__ = BlockMask
    packed = [batch.to(args.device) for batch in pack(rows, max_tokens=args.max_tokens)]
    in_rows = [batch.to(args.device) for batch in padded(rows, max_tokens=args.max_tokens)]
    seconds: dict[str, list[float]] = {name: [] for name in policies}
    totals: dict[str, float] = {}
    for repeat in range(-1, args.repeats):
        for name in list(policies)[:: 1 if repeat % 2 == 0 else -1]:
            batches = in_rows if name == "padded" else packed
            elapsed, totals[name] = timed(policies[name], batches, args.device)
            if repeat >= 0:
                seconds[name].append(elapsed)
    report(rows, in_rows, packed, seconds, totals)


def report(
    rows: list[WeightedRow],
    in_rows: list[PackedBatch],
    packed: list[PackedBatch],
    seconds: dict[str, list[float]],
    totals: dict[str, float],
) -> None:
    lengths = sorted(len(weighted.row.token_ids) for weighted in rows)
    num_tokens = sum(lengths)
    area = sum(to_padded(batch)[0].numel() for batch in in_rows)
    print(
        f"{len(rows)} rows of {lengths[0]} to {lengths[-1]} tokens, median "
        f"{lengths[len(lengths) // 2]}; padding adds {area / num_tokens - 1:.1%}; "
        f"{len(in_rows)} micro-batches padded, {len(packed)} packed"
    )
    for name, times in seconds.items():
        median = statistics.median(times)
        print(
            f"{name:>10}: {median:.3f} s, {num_tokens / median:,.0f} training tokens/s, "
            f"sum of log-probabilities {totals[name]:.4f}"
        )
    for name in seconds.keys() - {"spans"}:
        ratios = [a / b for a, b in zip(seconds[name], seconds["spans"], strict=True)]
        print(
            f"ratio {name} / spans: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
