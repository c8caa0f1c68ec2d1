"""What a judge says of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Capability(StrEnum):
    """The five behavioural capabilities c of the paper's Table 3."""

    UNDERSTANDING = "understanding"
    EXECUTION = "execution"
    VERIFICATION = "verification"
    DEBUGGING = "debugging"
    EFFICIENCY = "efficiency"


class Outcome(StrEnum):
    """A judge's valid answer y_ij for one rubric. A missing answer is *invalid*, never `FAIL`."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's valid answer for one rubric on one trajectory."""

    pair_id: int
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One observable behaviour the judge found, with the signal that shows it.

    Attributes:
        kind: `"gap"` (a weakness) or `"strategy"` (something useful).
        behaviour: What the agent did or failed to do.
        signal: Where the trace shows it.
        covered_by: Pair that already covers the behaviour; `None` if no rubric does.
    """

    kind: str
    behaviour: str
    signal: str = ""
    covered_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What judging one trajectory gave.

    Attributes:
        judged_pair_ids: The pool when judging of the group started. A pair in here without a
            verdict is *invalid*; a pair not in here is *unjudged*.
        verdicts: Valid verdicts, in pair-id order.
        diagnostics: Observed gaps and strategies.
        error: Why the answer is missing or partial; empty if all is well.
        prompt_hash: Hash of the prompt file by which the trajectory was reviewed.
        model: Name of the judge model.
        shortening: What of the trace was shortened for the judge; empty if nothing was.
    """

    judged_pair_ids: tuple[int, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    error: str = ""
    prompt_hash: str = ""
    model: str = ""
    shortening: str = ""

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """Outcome by pair id."""
        return {verdict.pair_id: verdict.outcome for verdict in self.verdicts}

    @property
    def num_invalid(self) -> int:
        """Judged pairs without a valid verdict."""
        return len(self.judged_pair_ids) - len(self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """A criterion of the OnlineRubrics baseline: it lives for one task in one iteration.

    Attributes:
        id: Number within its task and iteration, from 1.
        text: What a trajectory shows that meets it.
        weight: Its share of the reward, not 0; below 0 for a mistake that costs.
        quote: Where it was seen, word for word, in one of the trajectories compared.
    """

    id: int
    text: str
    weight: float
    quote: str
