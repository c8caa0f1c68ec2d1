"""The sampler against hand-computed numbers and against the distribution itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from arise.errors import ConfigError
from arise.inference.base import SamplingParams
from arise.inference.sampling import Sampler, UniformStreams, check

CPU = torch.device("cpu")
LOGITS = torch.tensor([1.0, 0.0, -1.0, -2.0])


def draw(params: list[SamplingParams], logits: torch.Tensor) -> tuple[list[int], list[float]]:
    tokens, logprobs = Sampler(params, CPU).sample(logits)
    return tokens.tolist(), logprobs.tolist()


def many(count: int, **params: float) -> list[SamplingParams]:
    return [SamplingParams(**{**params, "seed": seed}) for seed in range(count)]  # type: ignore[arg-type]


def test_T07_logprob_is_of_the_tempered_distribution() -> None:
    tokens, logprobs = draw(many(200, temperature=0.6), LOGITS.expand(200, 4))
    by_token = dict(zip(tokens, logprobs, strict=True))
    assert by_token[0] == pytest.approx(-0.208060, abs=1e-6)
    assert by_token[1] == pytest.approx(-0.208060 - 1 / 0.6, abs=1e-6)


@pytest.mark.parametrize(
    "params", [{"top_k": 2}, {"top_p": 0.8}, {"top_p": 0.87}, {"top_k": 3, "top_p": 0.9}]
)
def test_T08_truncated_logprobs_are_renormalised(params: dict[str, float]) -> None:
    # softmax is .6439 .2369 .0871 .0321; all these keep the first two, with mass .880797.
    tokens, logprobs = draw(many(300, **params), LOGITS.expand(300, 4))
    assert set(tokens) == {0, 1}
    expected = {0: math.log(0.643914 / 0.880797), 1: math.log(0.236883 / 0.880797)}
    for token, logprob in zip(tokens, logprobs, strict=True):
        assert logprob == pytest.approx(expected[token], abs=1e-5)


def test_top_p_keeps_the_token_that_crosses_the_mass_and_at_least_one() -> None:
    tokens, logprobs = draw(many(50, top_p=0.01), LOGITS.expand(50, 4))
    assert set(tokens) == {0}
    assert logprobs == [0.0] * 50


def test_greedy_is_a_point_mass_beside_sampling_rows() -> None:
    params = [SamplingParams(temperature=0.0), SamplingParams(temperature=2.0, seed=3)]
    logits = torch.tensor([[0.0, 5.0, 5.0], [0.0, 0.0, 0.0]])
    tokens, logprobs = draw(params, logits)
    assert tokens[0] == 1
    assert logprobs[0] == 0.0
    assert logprobs[1] == pytest.approx(-math.log(3))


def test_frequencies_follow_the_distribution() -> None:
    torch.manual_seed(0)
    logits = torch.randn(12) * 1.5
    count, steps = 500, 40
    sampler = Sampler(many(count, temperature=0.8), CPU)
    observed = torch.zeros(12)
    for _ in range(steps):
        tokens, _ = sampler.sample(logits.expand(count, 12))
        observed += torch.bincount(tokens, minlength=12)
    expected = (logits.double() / 0.8).softmax(-1) * count * steps
    assert chisquare(observed.double().numpy(), expected.numpy()).pvalue > 0.01


def test_successive_tokens_of_one_seed_are_independent() -> None:
    sampler = Sampler(many(400), CPU)
    logits = torch.zeros(400, 2)
    first, second = (sampler.sample(logits)[0] for _ in range(2))
    counts = torch.bincount(2 * first + second, minlength=4).numpy()
    assert chisquare(counts).pvalue > 0.01


def test_a_stream_depends_on_its_seed_alone_and_crosses_blocks() -> None:
    alone = UniformStreams([5], CPU)
    among = UniformStreams([1, 5, 9], CPU)
    expected = [float(alone.next()) for _ in range(600)]
    seen = [float(among.next()[1]) for _ in range(300)]
    among.select([2, 1])
    seen += [float(among.next()[1]) for _ in range(300)]
    assert seen == expected
    assert len(set(seen)) == 600
    reference = torch.rand(600, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert expected == reference.tolist()


def test_rows_do_not_depend_on_each_other_and_follow_a_selection() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 20)
    params = [SamplingParams(seed=s, temperature=0.5 + s) for s in range(3)]
    sampler = Sampler(params, CPU)
    sampler.sample(logits)
    sampler.select([2, 0])
    tokens, logprobs = sampler.sample(logits[[2, 0]])
    for position, row in enumerate((2, 0)):
        alone = Sampler([params[row]], CPU)
        alone.sample(logits[row : row + 1])
        token, logprob = alone.sample(logits[row : row + 1])
        assert token.item() == tokens[position].item()
        assert logprob.item() == logprobs[position].item()


def test_impossible_tokens_are_never_drawn_even_at_the_edge() -> None:
    sampler = Sampler([SamplingParams()], CPU)
    for uniform in (0.0, 1.0 - 2**-53):
        sampler._uniforms.next = lambda u=uniform: torch.tensor([u], dtype=torch.float64)  # type: ignore[method-assign]
        logits = torch.tensor([[float("-inf"), 0.3, 0.1, float("-inf")]])
        token, logprob = sampler.sample(logits)
        assert token.item() == (1 if uniform == 0 else 2)
        assert math.isfinite(logprob.item())


def test_a_broken_row_shows_as_nan() -> None:
    _, logprobs = draw(many(3), torch.tensor([[0.0, float("nan")], [float("inf"), 0], [0.0, 0.0]]))
    assert [math.isnan(logprob) for logprob in logprobs] == [True, True, False]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=30),
    st.floats(0.1, 3),
    st.integers(0, 2**63),
)
def test_logprob_equals_log_softmax(values: list[float], temperature: float, seed: int) -> None:
    logits = torch.tensor([values])
    (token,), (logprob,) = draw([SamplingParams(temperature=temperature, seed=seed)], logits)
    expected = (logits.double() / temperature).log_softmax(-1)[0, token].item()
    assert logprob == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.1}, r"sampling\.temperature must be >= 0"),
        ({"temperature": math.nan}, r"sampling\.temperature"),
        ({"top_p": 0.0}, r"sampling\.top_p must be in \(0, 1\]"),
        ({"top_p": 1.1}, r"sampling\.top_p"),
        ({"top_k": -1}, r"sampling\.top_k must be >= 0"),
        ({"max_tokens": 0}, r"sampling\.max_tokens must be >= 1, got 0"),
    ],
)
def test_parameters_out_of_range_are_refused(params: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(SamplingParams(**params))  # type: ignore[arg-type]
