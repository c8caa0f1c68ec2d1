"""One optimizer step of the real policy, to be measured: `python planned_step.py <checkpoints>`.

Prints the bytes that the process had more, at its peak, than before there was a model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from arise.algorithms.losses import dual_clipped_loss
from arise.algorithms.packing import PackedBatch
from arise.modules.policy_lm import PolicyLM

NUM_TOKENS, SPAN = 6144, 512
CHUNK_TOKENS = 256


def build(dtype: torch.dtype = torch.float32, *, num_layers: int = 8) -> Any:
    """A Llama, of 27 million parameters with eight layers."""
    config = LlamaConfig(
        hidden_size=512,
        num_hidden_layers=num_layers,
        intermediate_size=1536,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=2048,
        max_position_embeddings=NUM_TOKENS,
        tie_word_embeddings=False,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def micro_batch() -> PackedBatch:
    """Sequences of `SPAN` tokens, all but the first generated."""
    ends = torch.arange(0, NUM_TOKENS + 1, SPAN, dtype=torch.int32)
    mask = torch.ones(NUM_TOKENS, dtype=torch.bool)
    mask[ends[:-1].long()] = False
    return PackedBatch(
        input_ids=torch.arange(NUM_TOKENS) % 2048,
        position_ids=torch.arange(NUM_TOKENS) % SPAN,
        cu_seqlens=ends,
        generated_mask=mask,
        behavior_logprobs=torch.full((NUM_TOKENS,), -7.6),
        advantages=torch.ones(NUM_TOKENS),
        row_numbers=torch.arange(len(ends) - 1),
    )


def make_step(*, checkpoints: bool) -> Callable[[], None]:
    """The policy, its optimizer, and a function that trains one micro-batch."""
    policy = PolicyLM(
        build(),
        temperature=1.0,
        chunk_tokens=CHUNK_TOKENS,
        layout="packed",
        activation_checkpointing=checkpoints,
    )
    parameters = list(policy.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)
    batch = micro_batch()

    def step() -> None:
        logprobs, _ = policy(batch)
        result = dual_clipped_loss(
            logprobs,
            batch.behavior_logprobs,
            batch.advantages,
            batch.generated_mask,
            num_generated_tokens=int(batch.generated_mask.sum()),
            loss_order="arise",
            dual_clip=3.0,
            ratio_low=0.2,
            ratio_high=5.0,
        )
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def resident_bytes(field: str) -> int:
    """`VmRSS` or `VmHWM` of this process."""
    with open("/proc/self/status", encoding="ascii") as lines:
        line = next(line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    # Kernels, thread pools and imports are not the model's memory.
    torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 8, 8)] * 3)
    (torch.ones(64, 64) @ torch.ones(64, 64)).sum()
    before = resident_bytes("VmRSS")
    step = make_step(checkpoints=sys.argv[1] == "1")
    step()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak starts again: the second step has the optimizer's moments
    step()
    print(resident_bytes("VmHWM") - before)


if __name__ == "__main__":
    # Freed tensors go back to the system at once, as they go back to a device's pool.
    if os.environ.get("MALLOC_MMAP_THRESHOLD_") is None:
        os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.manual_seed(0)
    main()
