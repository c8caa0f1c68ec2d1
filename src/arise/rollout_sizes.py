"""How many episodes and groups of rollouts are under way at most, from the configuration.

Used to refuse what cannot be, before anything heavy is loaded, and to build what then runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def max_episodes(cfg: Any) -> int | None:
    """Most training episodes at once; `None` runs all B · G of a batch together.

    Asynchronously it is never `None`: `rollout.max_in_flight`, or else B · G, within what the
    sandboxes (half of them with held-out evaluation, whose episodes come on top) and the slots of
    an engine in this process allow.

    Args:
        cfg: The composed configuration.
    """
    rollout = cfg.rollout
    if rollout.max_staleness == 0:
        return rollout.max_in_flight or rollout.max_sandboxes
    if rollout.max_in_flight is not None:
        return rollout.max_in_flight
    limits = [rollout.tasks_per_step * rollout.rollouts_per_task]
    if rollout.max_sandboxes is not None:
        limits.append(max(1, rollout.max_sandboxes // _num_shares(cfg)))
    if cfg.engine.get("max_sessions") is not None:
        limits.append(cfg.engine.max_sessions)
    return min(limits)


def max_groups(cfg: Any) -> int:
    """Most groups begun and not trained, those in training included: at most (η + 1) · B.

    With more, a group could not be trained in time even if groups were trained in the order in
    which they were begun.
    """
    rollout = cfg.rollout
    bound = (rollout.max_staleness + 1) * rollout.tasks_per_step
    return rollout.max_groups_in_flight or bound


def size_problems(cfg: Any) -> Iterator[str]:
    """Sizes that contradict each other, one sentence each."""
    rollout = cfg.rollout
    eta, sandboxes = rollout.max_staleness, rollout.max_sandboxes
    if sandboxes is not None:
        num_shares = _num_shares(cfg)
        most = sandboxes // num_shares
        if num_shares > sandboxes:
            yield (
                f"rollout.max_sandboxes = {sandboxes} is too few for asynchronous rollouts beside "
                "held-out evaluation: at least 2, or evaluation=none"
            )
        elif rollout.max_in_flight is not None and rollout.max_in_flight > most:
            why = " for training, as many again for held-out evaluation" if num_shares > 1 else ""
            yield (
                f"rollout.max_in_flight = {rollout.max_in_flight} is more than the sandboxes "
                f"allow: rollout.max_sandboxes = {sandboxes}, so at most {most}{why}"
            )
    groups = rollout.max_groups_in_flight
    if groups is None:
        return
    if eta == 0:
        yield (
            f"rollout.max_groups_in_flight = {groups} has no meaning with rollout.max_staleness = "
            "0, where each step plays its own groups; set it to null"
        )
    elif not rollout.tasks_per_step <= groups <= (eta + 1) * rollout.tasks_per_step:
        yield (
            f"rollout.max_groups_in_flight = {groups} is not between rollout.tasks_per_step = "
            f"{rollout.tasks_per_step}, which a step trains, and (rollout.max_staleness + 1) x "
            f"rollout.tasks_per_step = {(eta + 1) * rollout.tasks_per_step}, which the bound on "
            "staleness allows"
        )


def _num_shares(cfg: Any) -> int:
    """Into how many parts sandboxes are divided: training, and an evaluation beside it."""
    is_beside = cfg.rollout.max_staleness > 0 and cfg.evaluation.eval_interval is not None
    return 1 + is_beside
