"""`PolicyLM` under FSDP2 is the plain computation: every kind of head, each layout, the check."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
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
)

from arise.algorithms.packing import PackedBatch, pack
from arise.errors import ConfigError
from arise.modules.policy_lm import PolicyLM
from learning import make_rows

VOCAB = 1500  # more than one tile of the head
TEMPERATURE = 0.8
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def llama(*, tied: bool) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=tied))


def qwen3(*, tied: bool) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=16, tie_word_embeddings=tied))


def gpt2(*, tied: bool) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    return GPT2LMHeadModel(config)


def qwen3_5(*, tied: bool) -> PreTrainedModel:
    """Every second layer is linear attention, which carries its state across a boundary."""
    config = Qwen3_5TextConfig(
        **_SIZES,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        tie_word_embeddings=tied,
    )
    return Qwen3_5ForCausalLM(config)


def build(factory: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return factory()


def policy_lm(model: PreTrainedModel, layout: str) -> PolicyLM:
    return PolicyLM(
        model,
        temperature=TEMPERATURE,
        chunk_tokens=8,
        layout=layout,
        activation_checkpointing=False,
    )


def batch() -> PackedBatch:
    (packed,) = pack(make_rows([13, 2, 29, 7], seed=4), max_tokens=64)
    return packed


def alone(model: PreTrainedModel, packed: PackedBatch) -> tuple[Tensor, Tensor]:
    """What PolicyLM must give: each sequence by itself, full logits, `log_softmax`."""
    logprobs, entropies = [], []
    model.eval()
    bounds = packed.cu_seqlens.tolist()
    for start, end in itertools.pairwise(bounds):
        ids, mask = packed.input_ids[start:end], packed.generated_mask[start:end]
        logits = model(ids[None], use_cache=False).logits[0, :-1] / TEMPERATURE
        table = logits.log_softmax(-1)
        chosen = table.gather(1, ids[1:, None]).squeeze(1)
        zero = table.new_zeros(1)
        logprobs += [zero, torch.where(mask[1:], chosen, 0.0)]
        entropies += [zero, torch.where(mask[1:], -(table.exp() * table).sum(-1), 0.0)]
    return torch.cat(logprobs), torch.cat(entropies).detach()


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        yield distributed.init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


CASES = [
    (functools.partial(factory, tied=tied), layout)
    for factory in (llama, qwen3, gpt2)
    for tied in (True, False)
    for layout in ("packed", "rows")
] + [(functools.partial(qwen3_5, tied=tied), "rows") for tied in (True, False)]


def _name(case: Any) -> str:
    if isinstance(case, str):
        return case
    return f"{case.func.__name__}-{'tied' if case.keywords['tied'] else 'untied'}"


@pytest.mark.parametrize(("factory", "layout"), CASES, ids=_name)
def test_sharded_scores_and_gradients_equal_each_trajectory_alone(
    factory: Any, layout: str, mesh: Any
) -> None:
    packed = batch()
    reference = build(factory)
    expected, expected_entropy = alone(reference, packed)
    weights = torch.randn(packed.num_tokens, generator=torch.Generator().manual_seed(2))
    (expected * weights).mean().backward()

    policy = policy_lm(build(factory), layout)
    policy.shard(mesh, compute_dtype=torch.float32)
    logprobs, entropy = policy(packed)
    (logprobs * weights).mean().backward()

    assert not entropy.requires_grad
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=1e-5)
    is_tied = reference.get_output_embeddings().weight is reference.get_input_embeddings().weight
    assert is_tied == factory.keywords["tied"]
    for name, parameter in policy.model.named_parameters():
        expected_grad = reference.get_parameter(name).grad
        grad = parameter.grad.full_tensor()
        torch.testing.assert_close(grad, expected_grad, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("factory", "layout"),
    [(llama, "packed"), (qwen3, "packed"), (gpt2, "packed"), (qwen3_5, "rows")],
)
def test_the_layout_is_found_out_when_the_policy_is_made(factory: Any, layout: str) -> None:
    policy = policy_lm(build(functools.partial(factory, tied=True)), "auto")
    assert policy.layout == layout


def test_a_model_that_mixes_packed_sequences_cannot_be_told_to_pack() -> None:
    model = build(functools.partial(qwen3_5, tied=True))
    with pytest.raises(ConfigError, match=r"model\.layout = packed, but Qwen3_5ForCausalLM mixes"):
        policy_lm(model, "packed")
