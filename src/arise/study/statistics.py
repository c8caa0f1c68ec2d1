"""The tests of a study: intervals over seeds, paired comparisons, steps to a level."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95
_MAX_EXACT = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % interval from Student's t.

    Attributes:
        mean: The mean.
        std: Sample standard deviation (n−1); 0 for one value.
        low: Lower end; NaN for one value.
        high: Upper end; NaN for one value.
        count: Values.
    """

    mean: float
    std: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        """Half the length of the interval; NaN for one value."""
        return (self.high - self.low) / 2


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, sample standard deviation and 95 % t interval.

    Example: [1, 2, 3] has mean 2, std 1 and half width 4.3027 / √3 = 2.4841.

    Raises:
        ValueError: No value.
    """
    if not values:
        raise ValueError("an estimate needs at least one value")
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Estimate(mean=mean, std=0.0, low=math.nan, high=math.nan, count=1)
    from scipy.stats import t

    std = statistics.stdev(values)
    half = float(t.ppf(0.5 + LEVEL / 2, count - 1)) * std / math.sqrt(count)
    return Estimate(mean=mean, std=std, low=mean - half, high=mean + half, count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two experiments on the same seeds.

    Attributes:
        seeds: The seeds that both have.
        difference: First minus second, over these seeds.
        p_t: Two-sided paired t test; NaN for fewer than two seeds or equal differences.
        p_signs: Two-sided exact sign-flip test: the share of all sign patterns whose mean is at
            least as far from 0. Its smallest value is 2 / 2^n; NaN beyond 14 seeds.
        p_holm: `p_t` corrected by Holm over all comparisons of the study.
    """

    seeds: tuple[int, ...]
    difference: Estimate
    p_t: float
    p_signs: float
    p_holm: float = math.nan


def compare(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison | None:
    """First minus second, paired by seed; `None` if they share no seed."""
    seeds = tuple(sorted(first.keys() & second.keys()))
    if not seeds:
        return None
    differences = [first[seed] - second[seed] for seed in seeds]
    return Comparison(
        seeds=seeds,
        difference=estimate(differences),
        p_t=_p_t(differences),
        p_signs=_p_signs(differences),
    )


def _p_t(differences: Sequence[float]) -> float:
    if len(differences) < 2 or statistics.stdev(differences) == 0:
        return math.nan
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def _p_signs(differences: Sequence[float]) -> float:
    if len(differences) > _MAX_EXACT:
        return math.nan
    observed = abs(math.fsum(differences))
    # Sums of the same numbers in another order may differ in the last bit.
    tolerance = 1e-9 * max(1.0, observed)
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    extreme = sum(
        abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True)))
        >= observed - tolerance
        for signs in patterns
    )
    return extreme / len(patterns)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction; NaN stays NaN and counts for nothing.

    Example: {"a": 0.01, "b": 0.04, "c": 0.03} gives a 0.03, b 0.06, c 0.06.
    """
    known = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    corrected = dict.fromkeys(p_values, math.nan)
    largest = 0.0
    for rank, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[name] = largest
    return corrected


def steps_to_reach(curve: Mapping[int, float], level: float) -> float | None:
    """The first step at which a curve, linear between its points, is at `level` or above.

    Example: {0: 10, 20: 30, 40: 50} reaches 40 at step 30, and never 60 (`None`).
    """
    points = sorted(curve.items())
    for (step_a, value_a), (step_b, value_b) in itertools.pairwise(points):
        if value_a >= level:
            return float(step_a)
        if value_b >= level:
            return step_a + (step_b - step_a) * (level - value_a) / (value_b - value_a)
    return float(points[-1][0]) if points and points[-1][1] >= level else None
