"""Evaluation results across a resume."""

import pytest

from arise.aio import EventLoopThread
from arise.callbacks.evaluation import EvaluationCallback
from arise.errors import ConfigError
from arise.evaluation.pass_rate import pass_rate
from arise.inference.base import SamplingParams


def callback(eval_interval: int = 5, sets: tuple[str, ...] = ("unseen",)) -> EvaluationCallback:
    """One that never plays: its loop and orchestrator are not used here."""
    return EvaluationCallback(
        loop=EventLoopThread.__new__(EventLoopThread),
        orchestrator=None,  # type: ignore[arg-type]
        tasks=(),
        extra=dict.fromkeys(sets, ()),
        eval_interval=eval_interval,
        attempts_per_task=2,
        sampling=SamplingParams(),
        quiet=True,
    )


def test_all_sets_are_put_back() -> None:
    before, after = callback(), callback()
    before.results[5] = pass_rate([[True, False]], domains=["files"])
    before.extra_results["unseen"][5] = pass_rate([[False, False]])
    after.load_state_dict(before.state_dict())
    assert after.results == before.results
    assert after.extra_results == before.extra_results


def test_a_checkpoint_from_before_further_sets_is_understood() -> None:
    own = callback()
    own.load_state_dict({"results": {0: (50.0, (50.0,), 2, 0)}})
    assert own.results[0].percent == 50.0
    assert own.extra_results == {"unseen": {}}


def test_the_interval_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.eval_interval = 0"):
        callback(0)
