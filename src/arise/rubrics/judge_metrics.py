"""What judging cost and how well it went, per iteration."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from arise.llm.usage import Usage

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

    For every review, verdicts asked for = valid (of these some from the cache) + invalid.

    Attributes:
        usage: Requests, tokens, cost, latency.
        num_reviews: Trajectories reviewed.
        num_shortened: Of these, with a shortened trace.
        num_calls: Calls to the endpoint, every try counted.
        num_skipped: Requests that were not sent: the budget was spent, or the judge is away.
        num_asked: Verdicts asked for.
        num_valid: Verdicts that were valid.
        num_cached: Of these, from the cache.
        num_findings: Answers with a list of findings, even an empty one.
        problems: Occurrences by kind, see `PROBLEMS`.

    Example:
        >>> metrics = JudgeMetrics(usage=Usage())
        >>> metrics.add_verdicts(num_asked=4, num_valid=3)
        >>> metrics.scalars()["judge/invalid_rate"]
        0.25
    """

    usage: Usage
    num_reviews: int = 0
    num_shortened: int = 0
    num_calls: int = 0
    num_skipped: int = 0
    num_asked: int = 0
    num_valid: int = 0
    num_cached: int = 0
    num_findings: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    def add_verdicts(self, *, num_asked: int, num_valid: int) -> None:
        """Count the verdicts of one request."""
        self.num_asked += num_asked
        self.num_valid += num_valid

    def add_cached(self, num_verdicts: int) -> None:
        """Count verdicts that needed no request."""
        self.num_cached += num_verdicts
        self.add_verdicts(num_asked=num_verdicts, num_valid=num_verdicts)

    @property
    def has_asked(self) -> bool:
        """Whether anything was asked, or would have been."""
        return self.usage.num_requests + self.num_skipped > 0

    @property
    def is_usable(self) -> bool:
        """Whether the model gave a valid verdict or a list of findings."""
        return self.num_valid > self.num_cached or self.num_findings > 0

    def scalars(self) -> dict[str, float]:
        """The values by TensorBoard name; the invalid rate is left out if no verdict was asked."""
        scalars: dict[str, float] = {
            "judge/reviews": self.num_reviews,
            "judge/shortened_traces": self.num_shortened,
            "judge/calls": self.num_calls,
            "judge/skipped_requests": self.num_skipped,
            "judge/verdicts": self.num_valid,
            "judge/cached_verdicts": self.num_cached,
            "judge/invalid_verdicts": self.num_asked - self.num_valid,
        }
        scalars |= {f"judge/{kind}": self.problems[kind] for kind in PROBLEMS}
        scalars |= self.usage.scalars("judge")
        if self.num_asked:
            scalars["judge/invalid_rate"] = 1.0 - self.num_valid / self.num_asked
        return {name: float(value) for name, value in scalars.items()}
