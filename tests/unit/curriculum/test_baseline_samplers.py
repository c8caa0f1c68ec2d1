"""VADE and uniform sampling."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from arise.curriculum.base import GroupObservation
from arise.curriculum.uniform import UniformSampler
from arise.curriculum.vade import VadeSampler
from arise.errors import ConfigError
from arise.types import Capability, Task


def make_tasks(*ids: str) -> list[Task]:
    return [Task(id=i, instruction="", path=Path(), tests=Path()) for i in ids]


def make_vade(*ids: str, seed: int = 0) -> VadeSampler:
    return VadeSampler(
        tasks=make_tasks(*ids),
        seed=seed,
        quarantine_after=3,
        gamma_obs=0.2,
        gamma_unobs=0.999,
    )


def make_uniform(*ids: str, seed: int = 0) -> UniformSampler:
    return UniformSampler(tasks=make_tasks(*ids), seed=seed, quarantine_after=3)


def rewarded(task_id: str, *rewards: float, num_lost: int = 0) -> GroupObservation:
    return GroupObservation(
        task_id=task_id,
        tags=(),
        num_rollouts=len(rewards) + num_lost,
        outcomes=({},) * len(rewards),
        rewards=rewards,
        is_complete=num_lost == 0,
        was_sent_to_evaluation=False,
    )


def ids(samples) -> list[str]:
    return [sample.task.id for sample in samples]


def test_vade_worked_numbers():
    sampler = make_vade("a", "b", "c")
    state = sampler.state_dict()
    sampler.load_state_dict({**state, "counts": {"a": (8.4, 5.0), "b": (9.0, 0.0)}})
    sampler.observe(1, [rewarded("a", *[1.0] * 7, 0.0)])
    assert sampler.counts("a") == (pytest.approx(8.68, abs=1e-12), pytest.approx(2.0, abs=1e-12))
    assert sampler.counts("b") == (pytest.approx(8.991, abs=1e-12), 0.0)
    assert sampler.counts("c") == (0.0, 0.0)


def test_vade_tells_the_numbers_of_its_choice():
    sampler = make_vade("a", "b")
    sampler.observe(1, [rewarded("a", 1.0, 1.0, 0.0)])
    chosen = {sample.task.id: sample.numbers for sample in sampler.draw(2)}
    assert (chosen["a"]["passes"], chosen["a"]["failures"]) == (2.0, 1.0)
    assert (chosen["b"]["passes"], chosen["b"]["failures"]) == (0.0, 0.0)
    assert all(0.0 < numbers["drawn_pass_rate"] < 1.0 for numbers in chosen.values())


def test_vade_counts_rewards_above_zero_and_survivors_only():
    sampler = make_vade("a", "b")
    sampler.observe(1, [rewarded("a", 0.5, 0.0, -1.0, num_lost=5), rewarded("b", num_lost=8)])
    assert sampler.counts("a") == (1.0, 2.0)
    assert sampler.counts("b") == (0.0, 0.0)
    sampler.observe(2, [rewarded("a", num_lost=8)])
    assert sampler.counts("a") == (0.999, 1.998), "without survivors it counts as not chosen"


def test_vade_takes_the_largest_of_independent_draws():
    # Two tasks, one place: P(a wins) by quadrature over both Betas.
    sampler = make_vade("a", "b", seed=3)
    sampler.load_state_dict({**sampler.state_dict(), "counts": {"a": (2.0, 4.0), "b": (6.0, 1.0)}})
    quantiles = (np.arange(2000) + 0.5) / 2000
    score = [
        p * (1 - p) ** 2 for p in (stats.beta.ppf(quantiles, 3, 5), stats.beta.ppf(quantiles, 7, 2))
    ]
    probability = np.searchsorted(np.sort(score[1]), score[0]).mean() / 2000
    num_wins = sum(ids(sampler.draw(1)) == ["a"] for _ in range(3000))
    assert 0.8 < probability < 0.99
    assert stats.binomtest(num_wins, 3000, probability).pvalue > 0.01


def test_vade_records_of_removed_tasks_stay_and_fade():
    before = make_vade("a", "gone")
    before.observe(1, [rewarded("gone", 1.0, 1.0)])
    after = make_vade("a", "new")
    after.load_state_dict(before.state_dict())
    assert sorted(ids(after.draw(5))) == ["a", "new"]
    after.observe(2, [rewarded("a", 1.0)])
    again = make_vade("gone")
    again.load_state_dict(after.state_dict())
    assert again.counts("gone") == (pytest.approx(1.998), 0.0)


def test_vade_mean_estimate():
    sampler = make_vade("a", "b")
    sampler.observe(1, [rewarded("a", 1.0, 1.0)])
    assert sampler.metrics()["sampler/mean_pass_probability"] == (3 / 4 + 1 / 2) / 2


def test_uniform_is_uniform_over_all_subsets():
    sampler = make_uniform("a", "b", "c", "d", seed=1)
    counts = Counter("".join(sorted(ids(sampler.draw(2)))) for _ in range(3000))
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


@pytest.mark.parametrize("make", [make_vade, make_uniform])
def test_batches_are_distinct_short_when_they_must_and_respect_exclusion(make):
    sampler = make("a", "b", "c", "d")
    assert sorted(ids(sampler.draw(9))) == ["a", "b", "c", "d"]
    assert sorted(ids(sampler.draw(9, ["b", "x"]))) == ["a", "c", "d"]
    assert sampler.draw(2, ["a", "b", "c", "d"]) == []
    for version in (1, 2, 3):
        sampler.observe(version, [rewarded("c", num_lost=8)])
    assert sorted(ids(sampler.draw(9))) == ["a", "b", "d"]


@pytest.mark.parametrize("make", [make_vade, make_uniform])
def test_S01_draws_after_resume_are_identical(make):
    tasks = [f"t{i:02d}" for i in range(30)]

    def run(sampler, start, stop):
        drawn = []
        for step in range(start, stop):
            samples = sampler.draw(8)
            drawn.append(ids(samples))
            groups = [rewarded(i, *(float((step + j) % 2) for j in range(4))) for i in drawn[-1]]
            sampler.observe(step + 1, groups)
        return drawn

    unbroken = make(*tasks, seed=5)
    run(unbroken, 0, 5)
    state = unbroken.state_dict()
    rest = run(unbroken, 5, 10)
    resumed = make(*tasks, seed=6)
    resumed.load_state_dict(state)
    assert run(resumed, 5, 10) == rest
    assert resumed.state_dict() == unbroken.state_dict()


@pytest.mark.parametrize("make", [make_vade, make_uniform])
def test_S03_all_rewards_zero_costs_exactly_b_tasks_per_step(make):
    sampler = make(*[f"t{i}" for i in range(20)])
    for step in range(30):
        samples = sampler.draw(8)
        assert len(set(ids(samples))) == 8
        sampler.observe(step + 1, [rewarded(i, *[0.0] * 8) for i in ids(samples)])
    assert sum(sampler.ledger.num_draws.values()) == 240


@pytest.mark.parametrize("make", [make_vade, make_uniform])
def test_rubrics_are_ignored(make):
    sampler = make("a")
    sampler.add_pair(1, Capability.EXECUTION)
    sampler.forget(1)
    assert ids(sampler.draw(1)) == ["a"]


def test_foreign_state_is_refused():
    with pytest.raises(ConfigError, match="saved state is of the sampler 'uniform'"):
        make_vade("a").load_state_dict(make_uniform("a").state_dict())
