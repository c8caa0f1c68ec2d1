"""How old the tokens are that an iteration trains on (W07: by token, not by trajectory)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from arise.types import Trajectory, TrajectoryGroup


def oldest_version(trajectories: Iterable[Trajectory]) -> int | None:
    """Policy version of the oldest generated token; `None` if there is no token.

    Example:
        >>> oldest_version([])
    """
    return min(_versions(trajectories), default=None)


def staleness_metrics(groups: Sequence[TrajectoryGroup], iteration: int) -> dict[str, float]:
    """`staleness/*` of one iteration; undefined ones are left out.

    The staleness of a token is k minus the policy version that sampled it: how many optimizer
    steps lie between sampling and the step that trains it. A group's is that of its oldest token.

    Args:
        groups: The groups that iteration k trains.
        iteration: k.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    ages = [iteration - version for version in _versions(trajectories)]
    if not ages:
        return {}
    oldest = [
        iteration - version
        for version in (oldest_version(group.trajectories) for group in groups)
        if version is not None
    ]
    mixed = sum(len(set(_versions([trajectory]))) > 1 for trajectory in trajectories)
    return {
        "staleness/token_mean": statistics.fmean(ages),
        "staleness/token_max": float(max(ages)),
        "staleness/stale_token_share": sum(age > 0 for age in ages) / len(ages),
        "staleness/group_mean": statistics.fmean(oldest),
        "staleness/mixed_trajectory_share": mixed / len(trajectories),
    }


def _versions(trajectories: Iterable[Trajectory]) -> Iterator[int]:
    """The version of every generated token."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            yield from turn.policy_versions
