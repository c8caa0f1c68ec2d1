"""Each sequence of a packed row sees itself only."""

import itertools

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from arise.algorithms.attention import (
    SPAN_ATTENTION,
    packing_is_exact,
    register_span_attention,
    span_arguments,
    span_attention,
)
from arise.algorithms.packing import WeightedRow, pack, to_padded
from arise.errors import ConfigError
from arise.types import TokenRow

VOCAB = 64
register_span_attention()
_ROPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def llama():
    return LlamaForCausalLM(LlamaConfig(**_ROPE))


def qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**_ROPE, head_dim=16))


def qwen3_sliding():
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    return Qwen3ForCausalLM(Qwen3Config(**_ROPE, head_dim=16, **window))


def gpt2():
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    shape = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, initializer_range=0.3))


def linear_attention():
    config = Qwen3NextConfig(
        **_ROPE,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=0,
        mlp_only_layers=[0, 1],
    )
    return Qwen3NextForCausalLM(config)


def build(factory, attention=SPAN_ATTENTION):
    torch.manual_seed(0)
    model = factory()
    model.set_attn_implementation(attention)
    return model


def packed_batch(lengths):
    generator = torch.Generator().manual_seed(1)
    rows = [
        WeightedRow(
            row=TokenRow(
                token_ids=tuple(torch.randint(VOCAB, (n,), generator=generator).tolist()),
                generated_mask=(False,) * n,
                logprobs=(0.0,) * n,
                policy_versions=(-1,) * n,
            ),
            advantage=0.0,
        )
        for n in lengths
    ]
    (batch,) = pack(rows, max_tokens=sum(lengths))
    return batch


def sequences(batch):
    return [batch.input_ids[a:b] for a, b in itertools.pairwise(batch.cu_seqlens.tolist())]


def packed_logits(model, batch):
    return model(
        input_ids=batch.input_ids[None],
        position_ids=batch.position_ids[None],
        **span_arguments(batch.cu_seqlens),
    ).logits[0]


@pytest.mark.parametrize("factory", [llama, qwen3, qwen3_sliding, gpt2])
def test_packed_logits_and_gradients_equal_those_of_each_sequence_alone(factory):
    batch = packed_batch([5, 1, 17, 9])
    packed, alone = build(factory), build(factory, "sdpa")
    weights = torch.randn(batch.num_tokens, VOCAB, generator=torch.Generator().manual_seed(2))
    logits = packed_logits(packed, batch)
    expected = torch.cat([alone(ids[None], use_cache=False).logits[0] for ids in sequences(batch)])
    (logits * weights).mean().backward()
    (expected * weights).mean().backward()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    for name, parameter in packed.named_parameters():
        expected_grad = alone.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, expected_grad, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("factory", [llama, qwen3, qwen3_sliding, gpt2])
def test_T13_padded_rows_equal_each_sequence_alone(factory):
    batch = packed_batch([5, 1, 17, 9])
    model = build(factory)
    input_ids, attention_mask, index = to_padded(batch)
    expected = packed_logits(model, batch)
    for mask in (attention_mask, None):
        logits = model(input_ids, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(logits.flatten(0, 1)[index], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factory", [llama, qwen3, qwen3_sliding, gpt2])
def test_models_of_pure_attention_pass_the_check(factory):
    model = build(factory).train()
    check = packing_is_exact(model, vocab_size=VOCAB, tolerance=1e-4)
    assert check.is_exact
    assert check.max_difference < 1e-5
    assert model.training


def test_a_model_with_linear_attention_fails_the_check_and_is_exact_in_padded_rows():
    model = build(linear_attention).eval()
    check = packing_is_exact(model, vocab_size=VOCAB, tolerance=1e-4)
    assert not check.is_exact
    assert check.max_difference > 1e-2
    batch = packed_batch([5, 17, 9])
    input_ids, attention_mask, index = to_padded(batch)
    with torch.no_grad():
        logits = model(input_ids, attention_mask=attention_mask, use_cache=False).logits
        expected = torch.cat([model(ids[None]).logits[0] for ids in sequences(batch)])
    torch.testing.assert_close(logits.flatten(0, 1)[index], expected, rtol=1e-4, atol=1e-4)


def test_the_check_fails_for_an_attention_that_leaks():
    class Leaky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build(llama, "sdpa")

        def forward(self, input_ids, position_ids=None, **_):
            mask = torch.ones_like(input_ids)
            return self.inner(input_ids, attention_mask=mask, position_ids=position_ids)

    assert not packing_is_exact(Leaky(), vocab_size=VOCAB, tolerance=1e-2).is_exact


def test_the_check_leaves_the_global_generator_alone():
    model = build(llama)
    state = torch.get_rng_state()
    packing_is_exact(model, vocab_size=VOCAB, tolerance=1e-4)
    assert torch.equal(state, torch.get_rng_state())


def test_generation_with_a_cache_and_left_padding_still_works():
    spans, plain = build(qwen3_sliding).eval(), build(qwen3_sliding, "sdpa").eval()
    prompts = torch.randint(1, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(prompts)
    mask[1, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(spans.generate(prompts, **options), plain.generate(prompts, **options))


def test_gradient_checkpointing_keeps_the_spans():
    batch = packed_batch([5, 9])
    model, reference = build(qwen3).train(), build(qwen3).train()
    model.gradient_checkpointing_enable()
    packed_logits(model, batch).square().mean().backward()
    packed_logits(reference, batch).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, reference.get_parameter(name).grad)


def test_wrong_uses_are_refused():
    module = torch.nn.Module()
    query = torch.zeros(1, 2, 4, 8)
    spans = torch.tensor([0, 4], dtype=torch.int32)
    mask, two = torch.ones(1, 1, 4, 4, dtype=torch.bool), query.repeat(2, 1, 1, 1)
    with pytest.raises(ValueError, match="no attention mask"):
        span_attention(module, query, query, query, mask, cu_seq_lens_q=spans)
    with pytest.raises(ValueError, match="no key-value cache"):
        span_attention(module, query[:, :, :1], query, query, None, cu_seq_lens_q=spans)
    with pytest.raises(ValueError, match="2 rows"):
        span_attention(module, two, two, two, None, cu_seq_lens_q=spans)
    with pytest.raises(ConfigError, match=r"softcap.*model\.layout=rows"):
        span_attention(module, query, query, query, None, softcap=30.0)
    module.is_causal = False
    with pytest.raises(ConfigError, match="not causal"):
        span_attention(module, query, query, query, None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("factory", [llama, qwen3, qwen3_sliding, gpt2])
def test_the_varlen_kernel_equals_the_loop_over_spans(factory):
    batch = packed_batch([5, 1, 17, 9]).to("cuda")
    reference = build(factory).to("cuda")
    half = build(factory).to("cuda", torch.bfloat16)
    logits, expected = packed_logits(half, batch), packed_logits(reference, batch)
    logits.float().square().mean().backward()
    expected.square().mean().backward()
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()
    for name, parameter in half.named_parameters():
        expected_grad = reference.get_parameter(name).grad
        difference = (parameter.grad - expected_grad).norm()
        assert difference < 0.1 * expected_grad.norm() + 1e-6, name
