"""Drawing tokens: one uniform per token from the request's own seed, inverted through the CDF.

Shapes: B requests, V vocabulary. All arithmetic is float64, so that a token does not depend on how
a float32 cumulative sum happens to round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arise.errors import ConfigError
from arise.inference.base import SamplingParams

_BLOCK = 256


def check(params: SamplingParams) -> None:
    """Refuse sampling parameters outside their range.

    Raises:
        ConfigError: Names the key, the value and what is allowed.
    """
    rules = (
        ("temperature", params.temperature >= 0, ">= 0 (0 is greedy)"),
        ("top_p", 0 < params.top_p <= 1, "in (0, 1] (1 is off)"),
        ("top_k", params.top_k >= 0, ">= 0 (0 is off)"),
        ("max_tokens", params.max_tokens >= 1, ">= 1"),
    )
    for key, valid, allowed in rules:
        if not valid:
            value = getattr(params, key)
            raise ConfigError(f"sampling.{key} must be {allowed}, got {value}")


class UniformStreams:
    """One stream of uniforms per request, a function of its seed alone.

    Args:
        seeds: One seed per request; reduced modulo 2^63.
        device: Where the uniforms are needed.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [torch.Generator().manual_seed(seed % (1 << 63)) for seed in seeds]
        self._device = device
        self._num_drawn = 0
        self._block = torch.empty(len(seeds), 0, dtype=torch.float64, device=device)

    def next(self) -> Tensor:
        """float64[B] in [0, 1): the next uniform of every stream."""
        column = self._num_drawn % _BLOCK
        if column == 0:
            draws = [
                torch.rand(_BLOCK, generator=generator, dtype=torch.float64)
                for generator in self._generators
            ]
            self._block = torch.stack(draws).to(self._device)
        self._num_drawn += 1
        return self._block[:, column]

    def select(self, order: Sequence[int]) -> None:
        """Keep the streams at these indices, in this order."""
        self._generators = [self._generators[i] for i in order]
        self._block = self._block[torch.tensor(order, dtype=torch.long, device=self._device)]


class Sampler:
    """Draws one token per request from softmax(logits / temperature), truncated where asked.

    Args:
        params: One per request, in row order.
        device: Where the logits will be.

    Example:
        With logits [1, 0, -1, -2] and temperature 0.6, token 0 has log-probability -0.208060.
    """

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        self._params = list(params)
        self._device = device
        self._uniforms = UniformStreams([p.seed for p in params], device)
        self._prepare()

    def _prepare(self) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=self._device)[:, None]

        temperatures = [p.temperature for p in self._params]
        self._is_greedy = column([float(t == 0) for t in temperatures]) > 0
        self._any_greedy = 0 in temperatures
        self._inverse_temperature = column([1.0 / t if t > 0 else 1.0 for t in temperatures])
        self._top_p = column([p.top_p for p in self._params])
        self._top_k = column([float(p.top_k) if p.top_k else float("inf") for p in self._params])
        self._any_scaled = any(t not in (0, 1) for t in temperatures)
        self._any_truncated = any(p.top_p < 1 or p.top_k > 0 for p in self._params)

    def select(self, order: Sequence[int]) -> None:
        """Keep the requests at these indices, in this order."""
        self._params = [self._params[i] for i in order]
        self._uniforms.select(order)
        self._prepare()

    def sample(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the next token of every request.

        The token is the first one whose cumulative probability exceeds the uniform. At
        temperature 0 the distribution is a point mass on the largest logit (the first of equals).

        Args:
            logits: float[B, V].

        Returns:
            int64[B] token ids and float64[B] log-probabilities under the distribution sampled
            from: temperature and truncation applied, so exactly 0 for a greedy token. A row with
            a NaN or +inf logit gives a NaN log-probability.
        """
        scaled = logits.to(torch.float64)
        if self._any_scaled:
            scaled = scaled * self._inverse_temperature
        shifted = scaled - scaled.amax(-1, keepdim=True)
        weights = shifted.exp()
        if self._any_truncated:
            weights = weights * self._kept(weights)
        cumulative = weights.cumsum(-1)
        total = cumulative[:, -1:]
        # Rounding may lift u·total to total itself; one step below it is still a drawable token.
        target = torch.minimum(
            self._uniforms.next()[:, None] * total, torch.nextafter(total, torch.zeros_like(total))
        )
        tokens = torch.searchsorted(cumulative, target, right=True)
        tokens = tokens.clamp_(max=logits.shape[-1] - 1)
        logprobs = shifted.gather(-1, tokens) - total.log()
        if self._any_greedy:
            tokens = torch.where(self._is_greedy, logits.argmax(-1, keepdim=True), tokens)
            logprobs = torch.where(self._is_greedy, total * 0.0, logprobs)
        return tokens[:, 0], logprobs[:, 0]

    def _kept(self, weights: Tensor) -> Tensor:
        """bool[B, V]: the k largest, then the smallest set of those whose mass reaches top-p."""
        ordered, index = weights.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(weights.shape[-1], device=weights.device)
        ordered = ordered * (rank < self._top_k)
        before = ordered.cumsum(-1) - ordered
        kept = (rank < self._top_k) & (before < self._top_p * ordered.sum(-1, keepdim=True))
        # At top-p 1, rounding of the sums must not cut the tail of the distribution.
        kept |= (self._top_p >= 1) & (rank < self._top_k)
        return torch.zeros_like(kept).scatter_(-1, index, kept)
