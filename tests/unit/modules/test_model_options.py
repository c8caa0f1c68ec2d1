"""bf16 compute, activation checkpointing, dropout and adapters at tiny size."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from arise.algorithms.packing import PackedBatch, pack
from arise.errors import ConfigError
from arise.modules.lora import LoraOptions, add_adapters
from arise.modules.policy_lm import PolicyLM
from learning import VOCAB, make_module, make_rows, train

ROWS = make_rows([60, 12, 33, 7, 5, 48, 21], seed=1)
NORMS = ("loss/policy", "loss/entropy", "loss/grad_norm")


def llama() -> PreTrainedModel:
    return make_module()._loader.model()


def gpt2(dropout: float = 0.0) -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=128,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return GPT2LMHeadModel(config)


def policy_lm(model: PreTrainedModel, **changes: Any) -> PolicyLM:
    options = {
        "temperature": 0.8,
        "chunk_tokens": 16,
        "layout": "auto",
        "activation_checkpointing": False,
    }
    return PolicyLM(model, **options | changes)


def batch() -> PackedBatch:
    (packed,) = pack(ROWS[:3], max_tokens=1000)
    return packed


def score(model: PolicyLM) -> Tensor:
    return model(batch())[0]


def lora(**changes: Any) -> LoraOptions:
    return LoraOptions(
        **{"rank": 4, "alpha": 8, "target_modules": "all-linear", "seed": 3} | changes
    )


def with_random_adapters(model: PreTrainedModel, **changes: Any) -> PreTrainedModel:
    add_adapters(model, lora(**changes))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return model


def test_bf16_compute_keeps_float32_masters_and_small_updates() -> None:
    """At a learning rate of 2e-6, bf16 weights of 0.02 would not move at all."""
    optimizer = functools.partial(torch.optim.AdamW, lr=2e-6, weight_decay=0.0)
    options = {"optimizer": optimizer, "warmup_steps": 0}
    half = train([ROWS] * 3, compute_dtype="bfloat16", **options)
    full = train([ROWS] * 3, **options)
    start = llama().state_dict()
    for name, weight in half.weights.items():
        assert weight.dtype == torch.float32
        if start[name].ndim > 1 and "embed" not in name and "lm_head" not in name:
            assert ((weight - start[name]).abs() > 1e-6).float().mean() > 0.9, name
    for name in NORMS:
        ours, exact = half.metrics[0][name], full.metrics[0][name]
        assert ours == pytest.approx(exact, rel=0.03), name
        assert ours != exact, name


def test_activation_checkpointing_gives_the_same_update_and_runs_layers_again() -> None:
    plain = train([ROWS] * 2)
    again = train([ROWS] * 2, activation_checkpointing=True)
    for name, weight in plain.weights.items():
        torch.testing.assert_close(again.weights[name], weight, rtol=0, atol=1e-7)
    calls = []
    for is_on in (False, True):
        model = policy_lm(llama(), activation_checkpointing=is_on)
        count = []
        mlp = model.model.base_model.layers[0].mlp
        mlp.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        score(model).sum().backward()
        calls.append(len(count))
    assert calls == [1, 2]


def test_dropout_is_off_in_training_too() -> None:
    """π_θ must be the distribution that was sampled from."""
    for is_on in (False, True):
        model = policy_lm(gpt2(dropout=0.5), activation_checkpointing=is_on).train()
        expected = score(policy_lm(gpt2()))
        torch.testing.assert_close(score(model), expected)
        torch.testing.assert_close(score(model.train()), expected)


def test_checkpointing_follows_the_mode() -> None:
    model = policy_lm(llama(), activation_checkpointing=True)
    layer = model.model.base_model.layers[0]
    assert layer.training
    assert not layer.mlp.training
    assert not model.eval().training
    assert not layer.training


@pytest.fixture
def _peft() -> None:
    pytest.importorskip("peft", reason="needs the extra `lora`")


@pytest.mark.usefixtures("_peft")
@pytest.mark.parametrize("factory", [llama, gpt2])
def test_merged_weights_are_the_function_of_the_adapted_model(factory: Any) -> None:
    adapted = policy_lm(with_random_adapters(factory()))
    weights = adapted.full_weights()
    plain = factory()
    assert list(weights) == list(plain.state_dict())
    before = score(policy_lm(factory()))
    plain.load_state_dict(weights, strict=True)
    after = score(policy_lm(plain))
    torch.testing.assert_close(after, score(adapted), rtol=1e-5, atol=1e-5)
    assert (after - before).abs().max() > 0.01


@pytest.mark.usefixtures("_peft")
def test_adapters_change_nothing_before_the_first_step_and_leave_the_generator() -> None:
    model = llama()
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    add_adapters(model, lora())
    assert torch.equal(torch.rand(1), expected)
    torch.testing.assert_close(score(policy_lm(model)), score(policy_lm(llama())))
    other = llama()
    add_adapters(other, lora())
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("_peft")
@pytest.mark.parametrize(
    "options",
    [{}, {"compute_dtype": "bfloat16", "activation_checkpointing": True}],
    ids=["float32", "bf16 and checkpointing"],
)
def test_only_adapters_are_trained(options: dict[str, Any]) -> None:
    start = llama().state_dict()
    trained = train([ROWS] * 2, lora=lora(target_modules=["q_proj", "down_proj"]), **options)
    assert list(trained.weights) == list(start)
    for name, weight in trained.weights.items():
        is_adapted = "q_proj" in name or "down_proj" in name
        assert torch.equal(weight, start[name]) != is_adapted, name
    (optimizer,) = trained.trainer.optimizers
    assert len(optimizer.param_groups[0]["params"]) == 8  # A and B of two layers of each block
    assert trained.metrics[0]["loss/grad_norm"] > 0.0


@pytest.mark.usefixtures("_peft")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": 0}, "model.lora.rank"),
        ({"alpha": 0}, "model.lora.alpha"),
        ({"target_modules": ["no_such_layer"]}, "model.lora.target_modules.*no_such_layer"),
        ({"target_modules": ["lm_head"]}, "model.lora.target_modules.*output head"),
        ({"target_modules": ["embed_tokens"]}, "model.lora.target_modules.*embedding"),
    ],
)
def test_impossible_adapters_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        add_adapters(llama(), lora(**change))
