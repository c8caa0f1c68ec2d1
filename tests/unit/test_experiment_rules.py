"""What the baselines' and controls' settings refuse, and where their pools come from."""

import pytest
from omegaconf import DictConfig

from arise.errors import ConfigError
from arise.rubrics.pool_file import pool_file
from arise.validation import validate
from runs import TASKS, compose_config


def composed(*overrides: str) -> DictConfig:
    own = ["datamodule=folder", f"datamodule.corpus={TASKS}", "evaluation=none"]
    return compose_config("model=random_tiny", *own, *overrides)


@pytest.mark.parametrize("mode", ["frozen", "static", "ruscarl"])
def test_a_fixed_pool_needs_a_file(mode: str) -> None:
    cfg = composed(f"rubrics={mode}", "rubrics.pool_path=null")
    with pytest.raises(ConfigError, match=f"rubrics.mode = {mode} needs rubrics.pool_path"):
        validate(cfg)
    validate(composed(f"rubrics={mode}"))


def test_online_criteria_tell_the_capability_sampler_nothing() -> None:
    with pytest.raises(ConfigError, match=r"rubrics = online; use curriculum\.sampler=uniform"):
        validate(composed("rubrics=online"))
    validate(composed("rubrics=online", "curriculum.sampler=vade"))


def test_stripping_a_scaffold_goes_with_ratios_that_do_not_start_at_1() -> None:
    strip = ("experiment=baseline/ruscarl", "rubrics.scaffold.strip=true")
    with pytest.raises(ConfigError, match=r"algorithm\.max_initial_ratio_error=null"):
        validate(composed(*strip))
    validate(composed(*strip, "algorithm.max_initial_ratio_error=null"))


def test_a_static_pool_needs_no_reflection() -> None:
    validate(composed("experiment=control/oracle", "reflection=none"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("arise.tasks.shellworld:pools/nothing.jsonl", "pools/nothing.jsonl"),
        ("no_such_package:pool.jsonl", "no_such_package:pool.jsonl"),
        ("some/pool.jsonl", "some/pool.jsonl"),
    ],
)
def test_a_pool_that_is_not_there_is_refused(path: str, expected: str) -> None:
    assert str(pool_file(path)).endswith(expected)
    with pytest.raises(ConfigError, match="does not exist"):
        validate(composed("rubrics=frozen", f'rubrics.pool_path="{path}"'))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+evaluation.extra.mine.corpus=null", "evaluation.extra.mine names no tasks"),
        ("+evaluation.extra.mine.corpus=nowhere", "evaluation.extra.mine.corpus: folder"),
    ],
)
def test_further_evaluation_sets_are_checked(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(composed(override))
