"""From graded and judged groups to one advantage per trajectory and rows to train on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from arise.algorithms.advantages import combined_advantages
from arise.algorithms.packing import WeightedRow
from arise.algorithms.rewards import length_regularized
from arise.algorithms.scores import points_score, score_advantages, weighted_score
from arise.errors import ConfigError
from arise.types import Iteration, Outcome, Trajectory, TrajectoryGroup

REWARDS = ("verifier", "points", "criteria")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditOptions:
    """Constants of Eq. 15 to 17.

    Attributes:
        rubric_weight: λ.
        std: `"sample"` or `"population"`.
        epsilon: ε.
        length_alpha: α.
        length_threshold_tokens: L_th.
        reward: `"verifier"`: Eq. 15 to 17. `"points"`: RuscaRL's share of met criteria.
            `"criteria"`: OnlineRubrics' weighted mean. The latter two know no Eq. 16 and 17.
        outcome_weight: Weight of the verifier's outcome among the criteria.
    """

    rubric_weight: float
    std: str
    epsilon: float
    length_alpha: float
    length_threshold_tokens: int
    reward: str = "verifier"
    outcome_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.reward not in REWARDS:
            raise ConfigError(f"reward {self.reward!r} is not one of {', '.join(REWARDS)}")


def assign_credit(
    iteration: Iteration, options: CreditOptions, *, live_pair_ids: Collection[int] | None = None
) -> None:
    """Fill `shaped_rewards`, `advantages` and `num_generated_tokens` of an iteration.

    Statistics are over the survivors of each group; a lost rollout has `None`.

    Args:
        iteration: With groups, and with reviews if a judge ran.
        options: Constants of the equations.
        live_pair_ids: Pairs still in the pool; verdicts of others leave I of Eq. 16. `None`
            counts all.
    """
    iteration.shaped_rewards = []
    iteration.advantages = []
    for index, group in enumerate(iteration.groups):
        shaped, advantages = _credit_group(iteration, index, group, options, live_pair_ids)
        iteration.shaped_rewards.append(_in_slots(group, shaped))
        iteration.advantages.append(_in_slots(group, advantages))
    iteration.num_generated_tokens = sum(
        trajectory.num_generated_tokens
        for group in iteration.groups
        for trajectory in group.trajectories
    )


def _credit_group(
    iteration: Iteration,
    index: int,
    group: TrajectoryGroup,
    options: CreditOptions,
    live_pair_ids: Collection[int] | None,
) -> tuple[list[float | None], list[float]]:
    survivors = group.trajectories
    if not survivors:
        return [], []
    reviews = iteration.reviews[index] if iteration.reviews else [None] * len(group.slots)
    outcomes = [
        review.outcomes if review is not None else {}
        for slot, review in zip(group.slots, reviews, strict=True)
        if isinstance(slot, Trajectory)
    ]
    if options.reward != "verifier":
        scores = _scores(iteration, index, survivors, outcomes, options, live_pair_ids)
        advantages = score_advantages(scores, std=options.std, eps=options.epsilon)
        return scores, [float(value) for value in advantages]
    shaped = length_regularized(
        [trajectory.task_reward for trajectory in survivors],
        [trajectory.num_generated_tokens for trajectory in survivors],
        alpha=options.length_alpha,
        length_threshold=options.length_threshold_tokens,
        eps=options.epsilon,
    )
    advantages = combined_advantages(
        shaped,
        outcomes,
        rubric_weight=options.rubric_weight,
        std=options.std,
        eps=options.epsilon,
        pair_ids=live_pair_ids,
    )
    return [float(value) for value in shaped], [float(value) for value in advantages]


def _scores(
    iteration: Iteration,
    index: int,
    survivors: Sequence[Trajectory],
    outcomes: Sequence[Mapping[int, Outcome]],
    options: CreditOptions,
    live_pair_ids: Collection[int] | None,
) -> list[float | None]:
    """The reward of a baseline that has its own, by survivor."""
    if options.reward == "points":
        return [points_score(own, pair_ids=live_pair_ids) for own in outcomes]
    weights = {criterion.id: criterion.weight for criterion in iteration.criteria[index]}
    return [
        weighted_score(
            weights,
            own,
            is_success=trajectory.is_success,
            outcome_weight=options.outcome_weight,
        )
        for trajectory, own in zip(survivors, outcomes, strict=True)
    ]


def _in_slots(group: TrajectoryGroup, values: Sequence[float | None]) -> list[float | None]:
    """Values of survivors at their slots."""
    remaining = iter(values)
    return [next(remaining) if isinstance(slot, Trajectory) else None for slot in group.slots]


def training_rows(iteration: Iteration) -> list[WeightedRow]:
    """Every row of every survivor with its trajectory's advantage, in slot order.

    Groups without variance stay in: their tokens count in Σm.
    """
    return [
        WeightedRow(row=row, advantage=advantage)
        for group, advantages in zip(iteration.groups, iteration.advantages, strict=True)
        for slot, advantage in zip(group.slots, advantages, strict=True)
        if isinstance(slot, Trajectory) and advantage is not None
        for row in slot.rows
    ]
