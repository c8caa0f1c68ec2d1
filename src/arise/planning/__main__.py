"""The table of docs/memory.md: `python -m arise.planning`."""

from __future__ import annotations

from itertools import product
from typing import Any

from arise.planning.memory import TrainerSetup, engine_memory, rank_memory
from arise.planning.report import GIB
from arise.planning.tracing import ModelSizes, model_sizes

CONTEXT_TOKENS = 131_072
_NUM_GPUS = (8, 16, 32)
_OFFLOADS = ("none", "activations", "both")


def qwen3_5_27b(dtype: Any) -> Any:
    """The text model of Qwen3.5-27B, by the sizes of its published configuration."""
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        hidden_size=5120,
        num_hidden_layers=64,
        intermediate_size=17408,
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=248320,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        max_position_embeddings=262144,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def table() -> str:
    """Markdown: GiB of a trainer rank by number of GPUs, and of a server."""
    import torch

    plain, fused = (
        model_sizes(qwen3_5_27b, dtype=torch.bfloat16, fuses_linear_attention=is_fused)
        for is_fused in (False, True)
    )
    lines = [
        "| GPUs | tensor parallel | on the host | weights, gradients, AdamW | gathered | "
        "activations | rest | in all | in all, fused |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for offload, num_gpus, tensor_parallel in product(_OFFLOADS, _NUM_GPUS, (1, 4)):
        lines.append(_line(plain, fused, num_gpus, tensor_parallel, offload))
    engine = engine_memory(plain, value_bytes=2)
    lines += [
        "",
        f"A server in bfloat16: weights {engine.weights / GIB:.1f} GiB over its GPUs; cache of an "
        f"episode of {CONTEXT_TOKENS:,} tokens {engine.episode(CONTEXT_TOKENS) / GIB:.1f} GiB, "
        f"of which {engine.per_episode / 1024**2:.0f} MiB are linear attention's state.",
    ]
    return "\n".join(lines)


def _line(
    plain: ModelSizes, fused: ModelSizes, num_gpus: int, tensor_parallel: int, offload: str
) -> str:
    setup = TrainerSetup(
        num_replicas=num_gpus // tensor_parallel,
        tensor_parallel=tensor_parallel,
        micro_batch_tokens=CONTEXT_TOKENS,
        compute_bytes=2,
        checkpoints_activations=True,
        cpu_offload=offload,
        chunk_tokens=256,
        is_gpu=True,
    )
    memory, best = rank_memory(plain, setup), rank_memory(fused, setup)
    figures = (
        memory.resident,
        memory.gathered,
        memory.activations,
        memory.backward + memory.head,
        memory.total,
        best.total,
    )
    cells = (str(num_gpus), str(tensor_parallel), offload, *(f"{x / GIB:.0f}" for x in figures))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table())
