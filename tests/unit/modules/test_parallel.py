"""What cannot be spread over ranks is refused, and says which key to change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import PreTrainedModel

import toys
from arise.errors import ConfigError
from arise.modules.lora import LoraOptions, add_adapters
from arise.modules.policy_lm import PolicyLM
from arise.modules.tensor_parallel import require_heads
from learning import make_module


@pytest.fixture
def ranks() -> Iterator[Any]:
    """Rank 0 of four, alone: enough for what is refused before anything is sent."""
    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    names = ("data_parallel", "tensor_parallel")
    try:
        yield distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    finally:
        distributed.destroy_process_group()


def policy_of(factory: Callable[[], PreTrainedModel], *, lora: bool = False) -> PolicyLM:
    model = toys.Toy(factory).model()
    if lora:
        add_adapters(model, LoraOptions(rank=2, alpha=4, target_modules="all-linear", seed=0))
    return PolicyLM(
        model, temperature=1.0, chunk_tokens=16, layout="auto", activation_checkpointing=False
    )


def refusal(policy: PolicyLM, ranks: Any, *, tensor: bool = False, sequence: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        policy.shard(
            ranks["data_parallel"],
            compute_dtype=torch.float32,
            tensor_mesh=ranks["tensor_parallel"] if tensor else None,
            sequence_group=ranks["data_parallel"].get_group() if sequence else None,
        )
    return str(caught.value)


def test_linear_attention_cannot_share_its_tokens(ranks: Any) -> None:
    message = refusal(policy_of(toys.qwen3_5), ranks, sequence=True)
    assert message.startswith("model.sequence_parallel = 2 needs packed rows")
    assert "Qwen3_5ForCausalLM has linear_attention" in message
    assert "use model.sequence_parallel=1" in message


def test_a_model_without_a_plan_cannot_be_cut(ranks: Any) -> None:
    message = refusal(policy_of(toys.gpt2), ranks, tensor=True)
    assert "model.tensor_parallel: transformers has no tensor-parallel plan for GPT2" in message


def test_adapters_cannot_be_cut(ranks: Any) -> None:
    message = refusal(policy_of(toys.llama, lora=True), ranks, tensor=True)
    assert message.startswith("model.tensor_parallel cuts no adapters")


def test_features_must_be_a_multiple_of_the_ranks(ranks: Any) -> None:
    odd = functools.partial(toys.llama, intermediate_size=63)
    message = refusal(policy_of(odd), ranks, tensor=True)
    assert (
        "model.tensor_parallel = 2 does not divide the 63 features of model.layers.0.mlp" in message
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "sequence"),
    [(32, 8, 8, 1), (32, 8, 2, 16), (32, 8, 1, 4), (24, 4, 4, 6), (16, 16, 4, 4)],
)
def test_heads_that_can_be_shared_out(
    heads: int, kv_heads: int, tensor: int, sequence: int
) -> None:
    config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv_heads)
    require_heads(config, tensor=tensor, sequence=sequence)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "sequence", "key"),
    [
        (32, 8, 3, 1, "model.tensor_parallel = 3 does not divide the model's 32 attention heads"),
        (32, 8, 16, 1, "model.tensor_parallel = 16 does not divide the model's 8 key-value heads"),
        (32, 8, 2, 3, "model.sequence_parallel = 3 cannot share out the 16 attention and 4"),
        (24, 4, 1, 6, "model.sequence_parallel = 6 cannot share out the 24 attention and 4"),
    ],
)
def test_heads_that_cannot_be_shared_out(
    heads: int, kv_heads: int, tensor: int, sequence: int, key: str
) -> None:
    config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv_heads)
    with pytest.raises(ConfigError, match=key):
        require_heads(config, tensor=tensor, sequence=sequence)


def test_heads_are_looked_at_before_weights_are_read(ranks: Any) -> None:
    class Unread(toys.Toy):
        def model(self) -> PreTrainedModel:
            raise AssertionError("weights were read")

    module = make_module(loader=Unread(toys.llama), sequence_parallel=3)
    module._device_mesh = ranks
    with pytest.raises(ConfigError, match=r"model\.sequence_parallel = 3 cannot share out the 2"):
        module.configure_model()


def test_only_checkpointed_activations_can_wait_on_the_host() -> None:
    with pytest.raises(ConfigError, match=r"set model\.activation_checkpointing=true"):
        make_module(loader=toys.Toy(toys.llama), cpu_offload="activations").configure_model()
