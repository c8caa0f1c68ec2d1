"""Sizes of asynchronous rollouts: what is derived, and what is refused at start-up."""

import pytest

from arise.errors import ConfigError
from arise.rollout_sizes import max_episodes, max_groups
from arise.validation import validate
from runs import TINY, compose_config

ASYNC = ("rollout.max_staleness=2", "rollout.tasks_per_step=4", "rollout.rollouts_per_task=8")


@pytest.mark.parametrize(
    ("overrides", "episodes", "groups"),
    [
        ((), None, 2),
        (("rollout.max_in_flight=3",), 3, 2),
        (("rollout.max_sandboxes=5",), 5, 2),
        (ASYNC, 32, 12),
        ((*ASYNC, "rollout.max_in_flight=50", "rollout.max_groups_in_flight=6"), 50, 6),
        ((*ASYNC, "rollout.max_sandboxes=10"), 10, 12),
        ((*ASYNC, "rollout.max_sandboxes=10", "evaluation=shellworld"), 5, 12),
        ((*ASYNC, "engine.max_sessions=7"), 7, 12),
    ],
)
def test_limits(overrides: tuple[str, ...], episodes: int | None, groups: int) -> None:
    cfg = compose_config(*TINY, *overrides)
    validate(cfg)
    assert (max_episodes(cfg), max_groups(cfg)) == (episodes, groups)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("rollout.max_staleness=-1",), r"rollout.max_staleness = -1 is not in \[0, inf\)"),
        (
            ("rollout.max_sandboxes=64", "rollout.max_in_flight=100"),
            "rollout.max_in_flight = 100 is more than the sandboxes allow: "
            "rollout.max_sandboxes = 64, so at most 64$",
        ),
        (
            (
                "rollout.max_staleness=1",
                "rollout.max_sandboxes=64",
                "rollout.max_in_flight=40",
                "evaluation=shellworld",
            ),
            "rollout.max_in_flight = 40 .* at most 32 for training, as many again for held-out",
        ),
        (
            ("rollout.max_staleness=1", "rollout.max_sandboxes=1", "evaluation=shellworld"),
            "rollout.max_sandboxes = 1 is too few",
        ),
        (
            ("rollout.max_staleness=1", "rollout.max_groups_in_flight=5"),
            "rollout.max_groups_in_flight = 5 is not between rollout.tasks_per_step = 2, .* = 4,",
        ),
        (
            ("rollout.max_staleness=1", "rollout.max_groups_in_flight=1"),
            "rollout.max_groups_in_flight = 1 is not between",
        ),
        (("rollout.max_groups_in_flight=2",), "rollout.max_groups_in_flight = 2 has no meaning"),
        (
            ("rollout.max_staleness=1", "engine=vllm", "engine.sync=ipc"),
            "engine.sync = ipc .* rollout.max_staleness = 1 plays rollouts all the time",
        ),
        (
            (
                "rollout.max_staleness=1",
                "experiment=baseline/online_rubrics",
                "rubrics.online.reference=initial_policy",
            ),
            "rubrics.online.reference = initial_policy gives the engine other weights",
        ),
    ],
)
def test_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(compose_config(*TINY, *overrides))
