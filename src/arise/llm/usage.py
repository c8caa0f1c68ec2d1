"""What asking a chat model cost: requests, tokens, money, time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from arise.errors import ConfigError
from arise.llm.chat import ChatResponse

TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """What an endpoint charges, in a currency of the user's choice.

    Attributes:
        prompt: Per million tokens sent.
        completion: Per million tokens answered.

    Example:
        >>> TokenPrices(prompt=0.5, completion=2.0).cost(1_000_000, 500_000)
        1.5
    """

    prompt: float
    completion: float

    @classmethod
    def from_config(cls, values: Mapping[str, float | None], *, key: str) -> TokenPrices | None:
        """The prices of a configuration; `None` if neither is given.

        Raises:
            ConfigError: One is negative, not finite, or missing while the other is there.
        """
        prompt, completion = values.get("prompt"), values.get("completion")
        if prompt is None and completion is None:
            return None
        for name, value in (("prompt", prompt), ("completion", completion)):
            if value is None or not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    f"{key}.{name} = {value!r} is not a price: give a number >= 0 per million "
                    f"tokens, or set both {key}.prompt and {key}.completion to null"
                )
        assert prompt is not None
        assert completion is not None
        return cls(prompt=prompt, completion=completion)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price of these tokens."""
        total = prompt_tokens * self.prompt + completion_tokens * self.completion
        return total / TOKENS_PER_PRICE


@dataclass(slots=True)
class Usage:
    """Requests to a model since the start of an iteration.

    Attributes:
        prices: For the cost; `None` if they are not known.
        num_requests: Requests, however often each was tried.
        num_failures: Requests without an answer.
        prompt_tokens: Tokens sent, where the endpoint says.
        completion_tokens: Tokens answered, where the endpoint says.
        latencies_s: Seconds of each request, retries and their waits included.

    Example:
        >>> usage = Usage(prices=TokenPrices(prompt=1.0, completion=2.0))
        >>> usage.answered(ChatResponse(text="", prompt_tokens=500_000), 0.25)
        >>> usage.scalars("judge")["judge/cost"]
        0.5
    """

    prices: TokenPrices | None = None
    num_requests: int = 0
    num_failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latencies_s: list[float] = field(default_factory=list)

    def answered(self, response: ChatResponse, duration_s: float) -> None:
        """Count a request with its answer."""
        self.num_requests += 1
        self.prompt_tokens += response.prompt_tokens
        self.completion_tokens += response.completion_tokens
        self.latencies_s.append(duration_s)

    def failed(self, duration_s: float) -> None:
        """Count a request without an answer."""
        self.num_requests += 1
        self.num_failures += 1
        self.latencies_s.append(duration_s)

    def scalars(self, group: str) -> dict[str, float]:
        """The values by TensorBoard name, such as `judge/requests`.

        The cost is left out without prices, the latencies without a request.
        """
        scalars: dict[str, float] = {
            f"{group}/requests": float(self.num_requests),
            f"{group}/failed_requests": float(self.num_failures),
            f"{group}/prompt_tokens": float(self.prompt_tokens),
            f"{group}/completion_tokens": float(self.completion_tokens),
        }
        if self.prices is not None:
            tokens = self.prompt_tokens, self.completion_tokens
            scalars[f"{group}/cost"] = self.prices.cost(*tokens)
        if self.latencies_s:
            scalars[f"{group}/latency_p50_s"] = quantile(self.latencies_s, 0.5)
            scalars[f"{group}/latency_p95_s"] = quantile(self.latencies_s, 0.95)
        return scalars


def quantile(values: list[float], q: float) -> float:
    """The smallest value with at least the share `q` of `values` at or below it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]
