"""The state machine of a rubric-skill pair (Eq. 5, 7 and 8)."""

from __future__ import annotations

from enum import StrEnum

from arise.rubrics.pair import SkillState


class Action(StrEnum):
    """What a scheduled update does with a pair."""

    KEEP = "keep"
    ACTIVATE = "activate"
    HIDE = "hide"
    REFINE = "refine"
    RETIRE = "retire"


def pass_rate(num_passes: int, num_applicable: int) -> float | None:
    """p̂_i of Eq. 2 in float64; `None` where the rubric never applied (N_i = 0).

    One correctly rounded division of two integers: 9 of 10 is the same float64 as the bound 0.9,
    which a mean in float32 would miss.
    """
    return num_passes / num_applicable if num_applicable else None


def decide(
    state: SkillState,
    *,
    num_passes: int,
    num_applicable: int,
    eta_low: float,
    eta_high: float,
    frozen: bool = False,
) -> Action:
    """The action for one pair, from its state *before* the update.

    | p̂ | hidden | active |
    |---|---|---|
    | N = 0 | keep | keep |
    | p̂ ≤ η_low (Eq. 7, 8) | activate | refine |
    | η_low < p̂ < η_high (Eq. 7) | keep | hide |
    | p̂ ≥ η_high (Eq. 5) | retire | retire |

    Args:
        state: The skill's state.
        num_passes: Pass verdicts of the window.
        num_applicable: Valid applicable verdicts N_i of the window.
        eta_low: η_low, activation threshold.
        eta_high: η_high, retirement threshold.
        frozen: Whether pairs are never retired; then everything above η_low hides.

    Example:
        >>> decide(SkillState.HIDDEN, num_passes=3, num_applicable=10, eta_low=0.3, eta_high=0.9)
        <Action.ACTIVATE: 'activate'>
    """
    rate = pass_rate(num_passes, num_applicable)
    if rate is None:
        return Action.KEEP
    if rate >= eta_high and not frozen:
        return Action.RETIRE
    if rate <= eta_low:
        return Action.REFINE if state is SkillState.ACTIVE else Action.ACTIVATE
    return Action.HIDE if state is SkillState.ACTIVE else Action.KEEP
