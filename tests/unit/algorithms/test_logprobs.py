"""Chunked log-probabilities against the plain computation."""

import math

import pytest
import torch
from torch import nn

from arise.algorithms.logprobs import require_full_distribution, token_logprobs
from arise.errors import ConfigError


def plain(hidden, weight, targets, *, temperature, bias=None):
    scaled = nn.functional.linear(hidden, weight, bias) / temperature
    logprobs = scaled.log_softmax(-1)
    chosen = logprobs.gather(1, targets[:, None]).squeeze(1)
    return chosen, -(logprobs.exp() * logprobs).sum(-1).detach()


def problem(dtype, *, num_tokens=23, size=16, vocab=50, bias=True):
    generator = torch.Generator().manual_seed(3)

    def leaf(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    hidden, weight = leaf(num_tokens, size), leaf(vocab, size)
    targets = torch.randint(vocab, (num_tokens,), generator=generator)
    upstream = torch.randn(num_tokens, generator=generator, dtype=dtype)
    return hidden, weight, leaf(vocab) if bias else None, targets, upstream


def test_T07_temperature_is_inside_the_normalizer():
    logits = torch.tensor([[1.0, 0.0, -1.0, -2.0]])
    logprobs, _ = token_logprobs(
        torch.ones(1, 1),
        logits.t().contiguous(),
        torch.tensor([0]),
        temperature=0.6,
        chunk_tokens=8,
    )
    assert logprobs.item() == pytest.approx(-0.20806, abs=1e-5)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_values_and_gradients_equal_the_plain_computation(dtype, tolerance, bias, chunk_tokens):
    hidden, weight, head_bias, targets, upstream = problem(dtype, bias=bias)
    leaves = [leaf for leaf in (hidden, weight, head_bias) if leaf is not None]
    expected, entropy = plain(hidden, weight, targets, temperature=0.7, bias=head_bias)
    expected_grads = torch.autograd.grad((expected * upstream).sum(), leaves)
    result, result_entropy = token_logprobs(
        hidden,
        weight,
        targets,
        temperature=0.7,
        head_bias=head_bias,
        chunk_tokens=chunk_tokens,
    )
    grads = torch.autograd.grad((result * upstream).sum(), leaves)
    assert not result_entropy.requires_grad
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(result_entropy, entropy, rtol=tolerance, atol=tolerance)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1024, 1025, 3000])
def test_a_vocabulary_of_several_tiles_equals_the_plain_computation(vocab, dtype):
    hidden, weight, head_bias, targets, upstream = problem(torch.float64, vocab=vocab)
    # Ends of tiles; and largest logits that rise, then fall, from tile to tile.
    targets[:4] = torch.tensor([0, 1023, vocab - 1, vocab // 2])
    steps = torch.tensor([0.0, 30.0, 10.0], dtype=torch.float64).repeat_interleave(1024)[:vocab]
    leaves = [hidden, weight * 0.3, head_bias + steps]
    narrow = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    exact = [leaf.detach().double().requires_grad_() for leaf in narrow]
    expected, entropy = plain(exact[0], exact[1], targets, temperature=0.7, bias=exact[2])
    expected_grads = torch.autograd.grad((expected * upstream).sum(), exact)
    result, result_entropy = token_logprobs(
        narrow[0], narrow[1], targets, temperature=0.7, head_bias=narrow[2], chunk_tokens=9
    )
    grads = torch.autograd.grad((result * upstream.to(result.dtype)).sum(), narrow)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(result_entropy.double(), entropy, rtol=tolerance, atol=tolerance)
    if dtype == torch.bfloat16:
        tolerance = 4e-3  # gradients are rounded to bfloat16 once, after they were summed up
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == dtype
        torch.testing.assert_close(grad.double(), expected_grad, rtol=tolerance, atol=tolerance)


def test_gradcheck():
    hidden, weight, head_bias, targets, _ = problem(torch.float64, num_tokens=5, size=3, vocab=7)

    def score(*leaves):
        return token_logprobs(
            leaves[0], leaves[1], targets, temperature=1.3, head_bias=leaves[2], chunk_tokens=2
        )[0]

    assert torch.autograd.gradcheck(score, (hidden, weight, head_bias))


def test_only_the_gradients_that_are_needed():
    hidden, weight, _, targets, _ = problem(torch.float32)
    logprobs, _ = token_logprobs(hidden, weight.detach(), targets, temperature=1.0, chunk_tokens=4)
    logprobs.sum().backward()
    assert weight.grad is None
    expected, _ = plain(hidden, weight, targets, temperature=1.0)
    expected_grads = torch.autograd.grad(expected.sum(), (hidden, weight))
    torch.testing.assert_close(hidden.grad, expected_grads[0], rtol=1e-5, atol=1e-5)
    hidden.grad = None
    logprobs, _ = token_logprobs(hidden.detach(), weight, targets, temperature=1.0, chunk_tokens=4)
    logprobs.sum().backward()
    assert hidden.grad is None
    torch.testing.assert_close(weight.grad, expected_grads[1], rtol=1e-5, atol=1e-5)


def test_half_precision_inputs_are_summed_in_float32():
    hidden, weight, head_bias, targets, upstream = problem(
        torch.float32, num_tokens=64, size=64, vocab=500
    )
    half = [leaf.detach().bfloat16().requires_grad_() for leaf in (hidden, weight, head_bias)]
    wide = [leaf.detach().float().requires_grad_() for leaf in half]
    expected, _ = plain(wide[0], wide[1], targets, temperature=1.0, bias=wide[2])
    expected_grads = torch.autograd.grad((expected * upstream).sum(), wide)
    result, entropy = token_logprobs(
        half[0], half[1], targets, temperature=1.0, head_bias=half[2], chunk_tokens=16
    )
    grads = torch.autograd.grad((result * upstream).sum(), half)
    assert result.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.bfloat16
        torch.testing.assert_close(grad, expected_grad.bfloat16(), rtol=1e-2, atol=1e-3)


def test_L07_no_scored_token_still_gives_gradients_of_zero():
    hidden = torch.zeros(0, 4, requires_grad=True)
    weight = torch.randn(6, 4, requires_grad=True)
    logprobs, entropy = token_logprobs(
        hidden, weight, torch.zeros(0, dtype=torch.int64), temperature=1.0, chunk_tokens=4
    )
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert weight.grad.abs().max().item() == 0.0


def test_T15_masked_tokens_ask_for_no_gradient_however_broken_they_are():
    hidden, weight, _, targets, upstream = problem(torch.float64, bias=False)
    upstream[::3] = 0.0
    expected, _ = plain(hidden, weight, targets, temperature=0.7)
    expected_grads = torch.autograd.grad((expected * upstream).sum(), (hidden, weight))
    broken = hidden.detach().clone()
    broken[3], broken[6] = math.nan, math.inf
    broken.requires_grad_()
    result, _ = token_logprobs(broken, weight, targets, temperature=0.7, chunk_tokens=4)
    grads = torch.autograd.grad(result, (broken, weight), upstream)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-11, atol=1e-11)
    assert grads[0][::3].abs().max().item() == 0.0


def test_extreme_logits_stay_finite():
    weight = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    hidden = torch.ones(2, 1, requires_grad=True)
    logprobs, entropy = token_logprobs(
        hidden, weight, torch.tensor([0, 1]), temperature=0.5, chunk_tokens=1
    )
    logprobs.sum().backward()
    assert logprobs.tolist() == [0.0, -40_000.0]
    assert entropy.tolist() == [0.0, 0.0]
    assert weight.grad.flatten().tolist() == [-2.0, 2.0, 0.0]


class _Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.head = nn.Linear(4, 10, bias=False)

    def forward(self, inputs, targets):
        hidden = self.body(inputs)
        return token_logprobs(hidden, self.head.weight, targets, temperature=0.8, chunk_tokens=3)[0]


def test_the_head_may_be_sharded(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("needs torch.distributed")
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model, reference = _Head(), _Head()
    reference.load_state_dict(model.state_dict())
    inputs, targets = torch.randn(8, 6), torch.randint(10, (8,))
    reference(inputs, targets).sum().backward()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        fully_shard(model.body, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(inputs, targets).sum().backward()
        for name, parameter in model.named_parameters():
            expected = reference.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad.full_tensor(), expected)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"temperature": 0.0}, "rollout.temperature"),
        ({"temperature": math.inf}, "rollout.temperature"),
        ({"chunk_tokens": 0}, "model.logprob_chunk_tokens"),
    ],
)
def test_a_setting_out_of_range_names_its_key(change, key):
    hidden, weight, _, targets, _ = problem(torch.float32)
    with pytest.raises(ConfigError, match=key):
        token_logprobs(
            hidden, weight, targets, **({"temperature": 1.0, "chunk_tokens": 4} | change)
        )


def test_shapes_and_dtypes_must_fit():
    hidden, weight, _, targets, _ = problem(torch.float32)
    options = {"temperature": 1.0, "chunk_tokens": 4}
    with pytest.raises(ValueError, match="do not align"):
        token_logprobs(hidden, weight, targets[1:], **options)
    with pytest.raises(ValueError, match=r"\[T, H\] and \[V, H\]"):
        token_logprobs(hidden[:, 1:], weight, targets, **options)
    with pytest.raises(ValueError, match="bfloat16"):
        token_logprobs(hidden.bfloat16(), weight, targets, **options)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"top_p": 0.9}, "rollout.top_p"),
        ({"top_k": 2}, "rollout.top_k"),
        ({"temperature": 0.0}, "rollout.temperature"),
    ],
)
def test_T08_truncated_sampling_is_refused(change, key):
    plain_sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    require_full_distribution(**plain_sampling)
    with pytest.raises(ConfigError, match=key):
        require_full_distribution(**(plain_sampling | change))
