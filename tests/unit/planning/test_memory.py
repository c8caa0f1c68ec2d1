"""The memory model: by hand, against PyTorch's own tracker, and against a process that trains."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
)

import planned_step
from arise.planning.memory import TrainerSetup, engine_memory, rank_memory
from arise.planning.tracing import ModelSizes, model_sizes

ROOT = Path(__file__).parents[3]


def setup(**changes: object) -> TrainerSetup:
    base: dict[str, object] = {
        "num_replicas": 1,
        "micro_batch_tokens": planned_step.NUM_TOKENS,
        "compute_bytes": 4,
        "checkpoints_activations": False,
        "chunk_tokens": planned_step.CHUNK_TOKENS,
        "is_gpu": False,
    }
    return TrainerSetup(**{**base, **changes})  # type: ignore[arg-type]


def sizes_of(config: object, *, is_fused: bool = False) -> ModelSizes:
    def build(dtype: torch.dtype) -> object:
        return AutoModelForCausalLM.from_config(config, dtype=dtype)

    return model_sizes(build, dtype=torch.float32, fuses_linear_attention=is_fused)


@pytest.fixture(scope="module")
def llama() -> ModelSizes:
    return model_sizes(planned_step.build, dtype=torch.float32, fuses_linear_attention=False)


def hybrid(num_layers: int) -> Qwen3_5TextConfig:
    """Every fourth layer has full attention."""
    return Qwen3_5TextConfig(
        hidden_size=64,
        num_hidden_layers=num_layers,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=256,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )


def test_formulas_by_hand() -> None:
    sizes = ModelSizes(
        num_parameters=1000,
        num_adapters=0,
        num_cut=800,
        layer_parameters=(300, 400),
        hidden_size=10,
        vocab_size=50,
        layer_bytes=(60.0, 80.0),
        cut_bytes=(20.0, 40.0),
        rest_bytes=8.0,
        widest_bytes=12.0,
        cache_values=6,
        state_values=100,
    )
    spread = setup(
        num_replicas=2,
        sequence_parallel=2,
        tensor_parallel=4,
        micro_batch_tokens=200,
        compute_bytes=2,
        chunk_tokens=5,
        is_gpu=True,
    )
    memory = rank_memory(sizes, spread)
    # f = 0.2 + 0.8 / 4 = 0.4, so a rank has 400 of 1,000 parameters, in four shards.
    assert memory.parameters == pytest.approx(4 * 100)
    assert memory.gradients == pytest.approx(4 * 100)
    assert memory.optimizer == pytest.approx(8 * 100)
    # The root has 300: 0.4 · (2 · (300 + 800) + 6 · 400).
    assert memory.gathered == pytest.approx(0.4 * (2200 + 2400))
    # Of a token: 60 - 15, 80 - 30, and 8 outside.
    assert memory.activations == pytest.approx(100 * (45 + 50 + 8))
    assert memory.backward == pytest.approx(2 * 100 * 12 / 4)
    assert memory.head == pytest.approx(100 * 4 * 10 + 8 * 5 * 50 / 4)
    assert memory.resident == pytest.approx(1600)
    assert memory.total == pytest.approx(1600 + 1840 + 10300 + 600 + 4500)

    again = setup(compute_bytes=2, micro_batch_tokens=200, checkpoints_activations=True)
    assert rank_memory(sizes, again).activations == 200 * (2 * 2 * 10 + 80 + 8)
    offloaded = setup(
        compute_bytes=2,
        micro_batch_tokens=200,
        checkpoints_activations=True,
        cpu_offload="both",
    )
    memory = rank_memory(sizes, offloaded)
    assert memory.activations == 200 * (80 + 8)
    assert memory.resident == 0
    adapters = rank_memory(replace(sizes, num_adapters=10), setup())
    assert (adapters.parameters, adapters.gradients, adapters.optimizer) == (4000, 40, 80)

    engine = engine_memory(sizes, value_bytes=2, tensor_parallel=2)
    assert (engine.weights, engine.per_token, engine.per_episode) == (1000, 6, 100)
    assert engine.episode(50) == 400


def test_a_models_sizes_are_those_of_the_model(llama: ModelSizes) -> None:
    model = planned_step.build()
    assert llama.num_parameters == sum(p.numel() for p in model.parameters())
    assert llama.num_adapters == 0
    assert llama.root_parameters == 2 * 2048 * 512 + 512
    assert len(llama.layer_parameters) == 8
    # Keys and values of 4 heads of 64 in 8 layers.
    assert llama.cache_values == 2 * 4 * 64 * 8
    assert llama.state_values == 0
    assert llama.widest_bytes == 4 * 1536
    # All but the norms has a tensor-parallel plan.
    assert llama.num_parameters - llama.num_cut == (2 * 8 + 1) * 512


@pytest.mark.parametrize("checkpoints", [False, True])
def test_the_model_agrees_with_pytorchs_tracker(checkpoints: bool) -> None:
    """Fake tensors: a whole step, counted by PyTorch at each operation."""

    def build(dtype: torch.dtype = torch.float32) -> Any:
        return planned_step.build(dtype, num_layers=3)

    sizes = model_sizes(build, dtype=torch.float32, fuses_linear_attention=False)
    planned = rank_memory(sizes, setup(checkpoints_activations=checkpoints)).total
    num_rows = planned_step.NUM_TOKENS // planned_step.SPAN
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        ids = torch.zeros((num_rows, planned_step.SPAN), dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):  # the optimizer's moments exist from the second step on
                hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
                chunk = hidden.flatten(0, 1)[: planned_step.CHUNK_TOKENS]
                (hidden.sum() + model.lm_head(chunk).logsumexp(-1).sum()).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                tracker.reset_mod_stats()
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    tracked = snapshot["Total"]
    assert planned == pytest.approx(tracked, rel=0.10)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_model_agrees_with_a_process_that_trains(llama: ModelSizes) -> None:
    """2.8 GB: the real policy, loss and optimizer; memory as the system counts it."""
    planned = rank_memory(llama, setup()).total
    assert planned > 2e9
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "planned_step.py"), "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    measured = int(done.stdout)
    assert planned == pytest.approx(measured, rel=0.15)


def test_linear_attention_has_a_state_and_no_growing_cache() -> None:
    four, eight = sizes_of(hybrid(4)), sizes_of(hybrid(8))
    # Of four layers one keeps keys and values: 2 · 2 heads · 16.
    assert four.cache_values == 64
    assert eight.cache_values == 128
    # Of three: 4 heads of 16 x 16, and 4 tokens of (2 · 2 + 4) · 16 values before the convolution.
    assert four.state_values == 3 * (4 * 16 * 16 + 4 * 128)
    engine = engine_memory(four, value_bytes=2)
    assert engine.episode(2000) - engine.episode(1000) == 1000 * 2 * 64


def test_a_fused_kernel_keeps_less_of_linear_attention_and_nothing_else_changes() -> None:
    plain, fused = sizes_of(hybrid(4)), sizes_of(hybrid(4), is_fused=True)
    assert all(f < p for f, p in zip(fused.layer_bytes[:3], plain.layer_bytes[:3], strict=True))
    assert fused.layer_bytes[3] == plain.layer_bytes[3]
    assert fused.num_parameters == plain.num_parameters


def test_of_a_mixture_of_experts_activations_are_unknown_and_that_is_said() -> None:
    config = Qwen3MoeConfig(
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=128,
    )
    sizes = sizes_of(config)
    assert sizes.num_parameters == sum(
        p.numel() for p in AutoModelForCausalLM.from_config(config).parameters()
    )
    assert sizes.untraced is not None
    assert (sizes.layer_bytes, sizes.rest_bytes) == ((), 0.0)


def test_planning_takes_no_memory_for_weights() -> None:
    """700 million parameters would be 2.8 GB."""
    config = LlamaConfig(
        hidden_size=2048, num_hidden_layers=10, intermediate_size=8192, vocab_size=32000
    )
    before = planned_step.resident_bytes("VmRSS")
    sizes = sizes_of(config)
    assert sizes.num_parameters > 7e8
    assert planned_step.resident_bytes("VmRSS") - before < 2e8
