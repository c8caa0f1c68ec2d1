"""What judging cost and how well it went, per iteration."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from arise.llm.chat import ChatResponse

PROBLEMS = (
    "broken_lines",
    "unknown_ids",
    "unreadable_verdicts",
    "duplicates",
    "contradictions",
    "unreadable_diagnostics",
    "no_diagnostics",
)


@dataclass(slots=True)
class JudgeMetrics:
    """Counters since the last `Judge.pop_metrics`.

    Attributes:
        num_reviews: Trajectories reviewed.
        num_shortened: Of these, with a shortened trace.
        num_calls: Requests to the model (its own retries not counted).
        num_failures: Requests without any answer.
        num_asked: Verdicts asked for.
        num_valid: Verdicts that were valid.
        prompt_tokens: Tokens of the prompts, where the endpoint says.
        completion_tokens: Tokens of the answers, where the endpoint says.
        latencies_s: Seconds per request.
        problems: Occurrences by kind, see `PROBLEMS`.

    Example:
        >>> metrics = JudgeMetrics()
        >>> metrics.add_verdicts(num_asked=4, num_valid=3)
        >>> metrics.scalars()["judge/invalid_rate"]
        0.25
    """

    num_reviews: int = 0
    num_shortened: int = 0
    num_calls: int = 0
    num_failures: int = 0
    num_asked: int = 0
    num_valid: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latencies_s: list[float] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)

    def add_verdicts(self, *, num_asked: int, num_valid: int) -> None:
        """Count the verdicts of one request."""
        self.num_asked += num_asked
        self.num_valid += num_valid

    def add_response(self, response: ChatResponse) -> None:
        """Count the tokens of one answer."""
        self.prompt_tokens += response.prompt_tokens
        self.completion_tokens += response.completion_tokens

    def scalars(self) -> dict[str, float]:
        """The values by TensorBoard name.

        Latencies are left out if there was no call, the invalid rate if no verdict was asked for.
        """
        scalars: dict[str, float] = {
            "judge/reviews": self.num_reviews,
            "judge/shortened_traces": self.num_shortened,
            "judge/calls": self.num_calls,
            "judge/failed_calls": self.num_failures,
            "judge/verdicts": self.num_valid,
            "judge/invalid_verdicts": self.num_asked - self.num_valid,
            "judge/prompt_tokens": self.prompt_tokens,
            "judge/completion_tokens": self.completion_tokens,
        }
        scalars |= {f"judge/{kind}": self.problems[kind] for kind in PROBLEMS}
        if self.num_asked:
            scalars["judge/invalid_rate"] = 1.0 - self.num_valid / self.num_asked
        if self.latencies_s:
            scalars["judge/latency_p50_s"] = quantile(self.latencies_s, 0.5)
            scalars["judge/latency_p95_s"] = quantile(self.latencies_s, 0.95)
        return {name: float(value) for name, value in scalars.items()}


def quantile(values: list[float], q: float) -> float:
    """The smallest value with at least the share `q` of `values` at or below it."""
    ordered = sorted(values)
    return ordered[max(0, -int(-q * len(ordered) // 1) - 1)]
