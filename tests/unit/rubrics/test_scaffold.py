"""RuscaRL's scaffold."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.errors import ConfigError
from arise.rubrics.pair import Rubric, RubricSkillPair, Skill
from arise.rubrics.scaffold import Scaffold
from arise.types import Capability

SCAFFOLD = Scaffold(seed=1, total_steps=150, steepness=125.0, midpoint=0.2, show="skill")
PAIRS = [
    RubricSkillPair(
        id=id_,
        title=f"title {id_}",
        capability=Capability.EXECUTION,
        rubric=Rubric(applicability="a", fail_condition="f", pass_condition=f"criterion {id_}"),
        skill=Skill(text=f"skill {id_}"),
        created_at=0,
    )
    for id_ in (7, 3, 5, 1)
]


@pytest.mark.parametrize(("step", "factor"), [(25, 0.99), (31, 0.46), (35, 0.03)])
def test_the_papers_decay_at_150_steps(step: int, factor: float) -> None:
    assert round(SCAFFOLD.decay(step), 2) == factor


def test_the_ratio_falls_from_all_to_none_over_the_group() -> None:
    """G = 8, 14 criteria, factor 1 to rounding: (7 − i)/7 of 14 is 14, 12, ... 0."""
    counts = [SCAFFOLD.num_shown(14, step=1, rollout=i, group_size=8) for i in range(8)]
    assert counts == [14, 12, 10, 8, 6, 4, 2, 0]


def test_late_in_training_nothing_is_shown() -> None:
    assert SCAFFOLD.num_shown(64, step=150, rollout=0, group_size=8) == 0
    assert Scaffold(**{**dataclasses.asdict(SCAFFOLD), "steepness": 1e9}).decay(150) < 1e-300


def shown(scaffold: Scaffold = SCAFFOLD, **changes: object) -> list[tuple[int, str]]:
    place = {"step": 1, "task_id": "t", "rollout": 3, "group_size": 8, **changes}
    return [(s.pair_id, s.text) for s in scaffold.shown(PAIRS, **place)]  # type: ignore[arg-type]


def test_what_is_shown_is_a_seeded_draw_in_id_order() -> None:
    assert len(shown()) == 2
    assert shown() == shown() == sorted(shown())
    draws = {tuple(shown(task_id=f"t{n}")) for n in range(40)}
    assert len(draws) == 6  # every pair of four
    assert shown(rollout=0) == [(id_, f"skill {id_}") for id_ in (1, 3, 5, 7)]


def test_criteria_can_be_shown_instead_of_guidance() -> None:
    scaffold = dataclasses.replace(SCAFFOLD, show="criterion")
    assert shown(scaffold, rollout=0)[0] == (1, "criterion 1")


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_factor_is_a_share_at_every_step(step: int, total: int) -> None:
    factor = dataclasses.replace(SCAFFOLD, total_steps=total).decay(min(step, total))
    assert 0.0 <= factor <= 1.0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"total_steps": 0}, "rubrics.scaffold.total_steps"),
        ({"steepness": 0.0}, "rubrics.scaffold.steepness"),
        ({"midpoint": 1.5}, "rubrics.scaffold.midpoint"),
        ({"show": "all"}, "rubrics.scaffold.show"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        dataclasses.replace(SCAFFOLD, **changes)  # type: ignore[arg-type]
