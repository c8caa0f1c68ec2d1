"""Batch construction of Appendix B.5, statistically and case by case."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from arise.curriculum.base import GroupObservation
from arise.curriculum.capability import CapabilitySampler
from arise.errors import ConfigError
from arise.types import Capability, Outcome, Task

P, F, NA = Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE
EXECUTION, DEBUGGING = Capability.EXECUTION, Capability.DEBUGGING


def make_tasks(spec: dict[str, tuple[str, ...]]) -> list[Task]:
    return [
        Task(id=i, instruction="", path=Path(), tests=Path(), tags=tags) for i, tags in spec.items()
    ]


def make_sampler(spec: dict[str, tuple[str, ...]], **changes) -> CapabilitySampler:
    arguments = {
        "seed": 0,
        "quarantine_after": 3,
        "min_discovery_probability": 0.0,
        "pair_quota": 1.0,
        "gamma_obs": 0.2,
        "gamma_unobs": 0.999,
    }
    return CapabilitySampler(tasks=make_tasks(spec), **{**arguments, **changes})


def group(
    task_id: str, tags: tuple[str, ...], *outcomes: dict[int, Outcome], **changes
) -> GroupObservation:
    arguments = {
        "num_rollouts": len(outcomes),
        "rewards": (0.0,) * len(outcomes),
        "is_complete": True,
    }
    return GroupObservation(
        task_id=task_id, tags=tags, outcomes=outcomes, **{**arguments, **changes}
    )


def lost(task_id: str, tags: tuple[str, ...], *outcomes: dict[int, Outcome]) -> GroupObservation:
    return group(task_id, tags, *outcomes, num_rollouts=len(outcomes) + 1, is_complete=False)


def ids(samples) -> list[str]:
    return [sample.task.id for sample in samples]


def covered_sampler(spec: dict[str, tuple[str, ...]], **changes) -> CapabilitySampler:
    """Every task passes once and fails once on rubric 1, so that nothing needs discovery."""
    sampler = make_sampler(spec, **changes)
    sampler.add_pair(1, EXECUTION)
    sampler.observe(1, [group(i, tags, {1: P}, {1: F}) for i, tags in spec.items()])
    return sampler


def test_eq14_pair_frequencies_match_the_integral():
    # d1: S=1, F=5; d2: S=4, F=4; d3: S=0, F=0.5. One task per tag, one draw per batch.
    spec = {"t1": ("d1",), "t2": ("d2",), "t3": ("d3",)}
    sampler = make_sampler(spec, seed=7)
    sampler.add_pair(1, EXECUTION)
    sampler.add_pair(2, EXECUTION)
    sampler.observe(
        1,
        [
            group("t1", ("d1",), {1: P, 2: P}, *[{1: F, 2: F}] * 5),
            group("t2", ("d2",), *[{1: P, 2: P}, {1: F, 2: F}] * 4),
            group("t3", ("d3",), {1: P, 2: P}, {1: F, 2: F}),
        ],
    )
    parameters = [(2, 6), (5, 5), (2, 2)]
    assert [tuple(1 + row[1]) for row in sampler.evidence.totals(1)] == parameters
    num_draws = 6000
    counts = Counter(sampler.draw(1)[0].tag for _ in range(num_draws))
    expected = eq14_probabilities(parameters)
    observed = [counts["d1"], counts["d2"], counts["d3"]]
    assert stats.chisquare(observed, expected * num_draws).pvalue > 0.01
    # The test can tell: without the factor (1-p̃)² it would fail.
    wrong = eq14_probabilities(parameters, power=0)
    assert stats.chisquare(observed, wrong * num_draws).pvalue < 1e-6


def eq14_probabilities(parameters: list[tuple[float, float]], power: int = 2) -> np.ndarray:
    """E[w_1/Σw] for independent Betas, by quadrature over a grid of quantiles."""
    quantiles = (np.arange(120) + 0.5) / 120
    weights = []
    for a, b in parameters:
        p = stats.beta.ppf(quantiles, a, b)
        weights.append(p * (1 - p) ** power)
    grid = np.stack(np.meshgrid(*weights, indexing="ij"))
    return (grid / grid.sum(axis=0)).reshape(len(parameters), -1).mean(axis=1)


def test_the_quadrature_oracle_itself():
    # E[w] of one Beta: the grid mean must equal the integral.
    quantiles = (np.arange(120) + 0.5) / 120
    p = stats.beta.ppf(quantiles, 2, 6)
    exact, _ = integrate.quad(lambda x: x * (1 - x) ** 2 * stats.beta.pdf(x, 2, 6), 0, 1)
    assert (p * (1 - p) ** 2).mean() == pytest.approx(exact, rel=2e-3)


def test_a_choice_tells_the_numbers_it_rested_on():
    sampler = make_sampler({"a": ("ml",), "open": ("db",)}, min_discovery_probability=0.0)
    sampler.add_pair(1, EXECUTION)
    sampler.observe(1, [group("a", ("ml",), {1: P}, {1: F}, {1: F}), lost("open", ("db",))])
    assert sampler.discovery_probability == 0.5
    seen = {}
    for _ in range(40):
        sample = sampler.draw(1)[0]
        seen[sample.reason] = sample
    numbers = dict(seen["discovery"].numbers)
    assert seen["discovery"].task.id == "open"
    assert numbers == {"discovery_probability": 0.5, "num_attempts": 1.0}
    numbers = dict(seen["adaptive"].numbers)
    assert 0.0 < numbers.pop("drawn_pass_rate") < 1.0
    assert numbers == {
        "discovery_probability": 0.5,
        "num_attempts": 1.0,
        "passes": 1.0,
        "failures": 2.0,
    }


def test_adaptive_choice_is_uniform_among_members_with_evidence_of_their_own():
    spec = {"a": ("ml",), "b": ("ml",), "c": ("ml",), "bare": ("ml",), "other": ("db",)}
    sampler = make_sampler(spec, seed=3)
    sampler.add_pair(1, EXECUTION)
    observed = [group(i, ("ml",), {1: P}, {1: F}) for i in "abc"]
    # "bare" is covered, but nothing applied to it: no member.
    sampler.observe(1, [*observed, group("bare", ("ml",), {1: NA}, {1: NA})])
    adaptive = [s for s in (sampler.draw(1)[0] for _ in range(3000)) if s.reason == "adaptive"]
    counts = Counter(ids(adaptive))
    assert set(counts) == {"a", "b", "c"}
    assert stats.chisquare(list(counts.values())).pvalue > 0.01
    assert {(s.tag, s.capability) for s in adaptive} == {("ml", EXECUTION)}


def test_discovery_weights_are_inverse_to_attempts_and_failures():
    spec = {"a": (), "b": (), "c": ()}
    sampler = make_sampler(spec, seed=5, quarantine_after=99)
    # Empty pool: every draw is discovery. Burdens 0, 1 (one evaluation), 3 (1 + 2 failures).
    sampler.observe(1, [group("b", (), {}), group("c", (), {}), lost("c", (), {}), lost("c", ())])
    samples = [sampler.draw(1)[0] for _ in range(4000)]
    assert {sample.reason for sample in samples} == {"discovery"}
    counts = Counter(ids(samples))
    expected = np.array([1, 1 / 2, 1 / 4]) / 1.75 * 4000
    assert stats.chisquare([counts[i] for i in "abc"], expected).pvalue > 0.01


def test_weighted_draws_without_replacement_are_sequential():
    # P(first two = a, b) = w_a/W · w_b/(W - w_a) with w = 1, 1/2, 1/4.
    sampler = make_sampler({"a": (), "b": (), "c": ()}, seed=11, quarantine_after=99)
    sampler.observe(1, [group("b", (), {}), group("c", (), {}), lost("c", (), {}), lost("c", ())])
    counts = Counter("".join(ids(sampler.draw(2))) for _ in range(4000))
    weights = {"a": 1.0, "b": 0.5, "c": 0.25}
    expected = {
        x + y: weights[x] / 1.75 * weights[y] / (1.75 - weights[x]) * 4000
        for x in "abc"
        for y in "abc"
        if x != y
    }
    keys = sorted(expected)
    assert stats.chisquare([counts[k] for k in keys], [expected[k] for k in keys]).pvalue > 0.01


def test_share_of_discovery_is_rho():
    spec = {f"t{i}": ("ml",) for i in range(200)}
    sampler = make_sampler(spec, seed=1, min_discovery_probability=0.1)
    sampler.add_pair(1, EXECUTION)
    sampler.observe(1, [group(f"t{i}", ("ml",), {1: P}, {1: F}) for i in range(120)])
    assert sampler.coverage.value() == 0.6
    assert sampler.discovery_probability == pytest.approx(0.4)
    reasons = Counter(sampler.draw(1)[0].reason for _ in range(3000))
    assert stats.binomtest(reasons["discovery"], 3000, 0.4).pvalue > 0.01
    assert reasons["fallback"] == 0


def test_quota_bounds_adaptive_hits_of_a_pair_and_fallback_fills_the_rest():
    spec = {f"t{i:02d}": ("ml",) for i in range(40)}
    sampler = covered_sampler(spec, pair_quota=0.25)
    samples = sampler.draw(32)
    reasons = Counter(sample.reason for sample in samples)
    assert reasons == {"adaptive": 8, "fallback": 24}
    assert len(set(ids(samples))) == 32
    metrics = sampler.metrics()
    assert metrics["sampler/share_adaptive"] == 0.25
    assert metrics["sampler/share_fallback"] == 0.75


@pytest.mark.parametrize(
    ("quota", "size", "hits"),
    [(0.25, 32, 8), (0.25, 2, 1), (0.1, 3, 1), (0.3, 10, 3), (0.3, 11, 4)],
)
def test_quota_is_rounded_up_but_not_by_rounding_errors(quota, size, hits):
    assert make_sampler({"a": ()}, pair_quota=quota).max_hits(size) == hits


def test_fallback_prefers_tasks_that_need_discovery():
    # One of two tasks is covered, so ρ = 1/2; nothing ever applied, so no pair is eligible.
    sampler = make_sampler({"done": ("ml",), "open": ("ml",)}, seed=2)
    sampler.add_pair(1, EXECUTION)
    sampler.observe(1, [group("done", ("ml",), {1: NA})])
    for _ in range(50):
        first, second = sampler.draw(2)
        assert first.task.id == "open"
        assert first.reason in {"discovery", "fallback"}
        assert (second.task.id, second.reason) == ("done", "fallback")


@pytest.mark.parametrize("needs_discovery", [True, False])
def test_fallback_weights_are_inverse_to_attempts_and_failures(needs_discovery):
    # No pair is eligible: nothing ever applied. Burdens 1, 2 and 4 of a, b and c; "done" has 1.
    # With ρ_min = 0 and D empty there is no discovery; else ρ > 0, and both draw alike from D.
    spec = {"a": (), "b": (), "c": (), "done": ()}
    sampler = make_sampler(spec, seed=13, quarantine_after=99)
    sampler.add_pair(1, EXECUTION)
    verdict = {} if needs_discovery else {1: NA}
    sampler.observe(1, [group(i, (), verdict) for i in "abc"] + [group("done", (), {1: NA})])
    sampler.observe(2, [lost("b", ()), *[lost("c", ())] * 3])
    samples = [sampler.draw(1)[0] for _ in range(4000)]
    counts = Counter(ids(samples))
    weights = {"a": 1 / 2, "b": 1 / 3, "c": 1 / 5}
    if not needs_discovery:
        weights["done"] = 1 / 2
        assert {sample.reason for sample in samples} == {"fallback"}
    assert set(counts) == set(weights)
    expected = np.array(list(weights.values())) / sum(weights.values()) * 4000
    assert stats.chisquare([counts[i] for i in weights], expected).pvalue > 0.01


def test_tasks_in_flight_are_never_drawn_but_stay_in_x():
    spec = {f"t{i}": ("ml",) for i in range(6)}
    sampler = covered_sampler(spec)
    in_flight = {"t0", "t3", "unknown"}
    for _ in range(50):
        assert set(ids(sampler.draw(4, in_flight))) == {"t1", "t2", "t4", "t5"}
    assert len(sampler.draw(6, in_flight)) == 4
    assert sampler.coverage.value() == 1.0


def test_small_sets_and_nothing_available_give_short_batches():
    sampler = covered_sampler({"a": ("ml",), "b": ()})
    assert sorted(ids(sampler.draw(32))) == ["a", "b"]
    assert sampler.draw(32, ["a", "b"]) == []


def test_incomplete_groups_count_in_f_only_and_end_in_quarantine():
    sampler = make_sampler({"a": ("ml",), "b": ("ml",)})
    sampler.add_pair(1, EXECUTION)
    for version in (1, 2, 3):
        sampler.observe(version, [lost("a", ("ml",), {1: P}, {1: P})])
    assert sampler.coverage.value() == 0.0
    assert not sampler.evidence.totals(3).any()
    assert not sampler.records.num_records.any()
    assert sampler.ledger.burden.tolist() == [3, 0]
    assert sampler.ledger.quarantined == ("a",)
    assert ids(sampler.draw(2)) == ["b"]
    assert sampler.metrics()["sampler/num_quarantined"] == 1.0


def test_quarantined_members_make_a_pair_ineligible():
    sampler = covered_sampler({"a": ("ml",), "b": ("db",)})
    for version in (2, 3, 4):
        sampler.observe(version, [lost("a", ("ml",))])
    assert {sampler.draw(1)[0].tag for _ in range(50)} == {"db"}


def test_multi_tag_tasks_are_members_of_all_their_tags_and_untagged_of_none():
    sampler = covered_sampler({"both": ("db", "ml", "ml"), "none": ()}, seed=4)
    totals = sampler.evidence.totals(1)[:, 1]
    assert totals.tolist() == [[1.0, 1.0], [1.0, 1.0]], "a tag written twice counts once"
    assert sampler.records.num_members[:, 1].tolist() == [1, 1]
    tags = Counter(sampler.draw(1)[0].tag for _ in range(2000))
    assert set(tags) == {"db", "ml"}, "both pairs target it, ρ is 0 and fallback never needed"
    assert stats.binomtest(tags["db"], 2000).pvalue > 0.01
    first, second = sampler.draw(2)
    assert (first.task.id, first.reason) == ("both", "adaptive")
    assert (second.task.id, second.reason) == ("none", "fallback")


def test_retirement_removes_only_the_affected_rubric():
    sampler = make_sampler({"a": ("ml",), "b": ("ml",)})
    for pair_id, capability in ((1, EXECUTION), (2, EXECUTION), (3, DEBUGGING)):
        sampler.add_pair(pair_id, capability)
    sampler.observe(
        1, [group("a", ("ml",), {1: P, 2: F, 3: F}), group("b", ("ml",), {1: P, 2: NA, 3: NA})]
    )
    before = sampler.evidence.totals(1)
    assert before[0, 1].tolist() == [1.5, 0.5]
    sampler.forget(1)
    after = sampler.evidence.totals(1)
    assert after[0, 1].tolist() == [0.0, 0.5], "what is left of Eq. 9 is not renormalized"
    assert after[0, 3].tolist() == before[0, 3].tolist() == [0.0, 1.0]
    assert sampler.coverage.covered("a") == {2, 3}
    assert sampler.records.num_members[0].tolist() == [0, 1, 0, 1, 0], "b has no record left"
    assert sampler.ledger.burden.tolist() == [1, 1], "a_x never resets"
    sampler.add_pair(4, EXECUTION)
    assert sampler.coverage.covered("a") == {2, 3}
    assert sampler.coverage.outstanding().all()
    sampler.observe(2, [group("b", ("ml",), {1: P, 4: P})])
    assert sampler.evidence.current(2, "ml", 4) == (1.0, 0.0), "a late verdict of 1 is not in |R_c|"


def test_emptied_pool_returns_to_pure_discovery():
    sampler = covered_sampler({"a": ("ml",), "b": ("ml",)})
    sampler.forget(1)
    assert (sampler.coverage.value(), sampler.discovery_probability) == (0.0, 1.0)
    assert {sample.reason for sample in sampler.draw(2)} == {"discovery"}


def test_added_and_removed_tasks():
    before = covered_sampler({"stays": ("ml",), "gone": ("ml",)})
    state = before.state_dict()
    after = make_sampler({"stays": ("ml",), "new": ("ml",)})
    after.load_state_dict(state)
    assert after.evidence.current(1, "ml", 1) == (2.0, 2.0), "tag evidence of removed tasks stays"
    assert after.coverage.covered("new") == frozenset()
    assert after.coverage.value() == 0.5
    assert after.records.num_members[0, 1] == 1
    assert sorted(ids(after.draw(9))) == ["new", "stays"]
    again = make_sampler({"gone": ("ml",)})
    again.load_state_dict(after.state_dict())
    assert again.coverage.covered("gone") == {1}, "records of a removed task stay by id"
    assert again.ledger.burden.tolist() == [1]


def test_group_order_does_not_matter_to_the_last_bit():
    spec = {"a": ("ml",), "b": ("ml",), "c": ("ml",)}
    # Rubric 1 passes among 7, 3 and 1 applicable ones: ΔS = 1/7, 1/3, 1.
    groups = [
        group(i, ("ml",), {1: P, **dict.fromkeys(range(2, size + 1), F)})
        for i, size in (("a", 7), ("b", 3), ("c", 1))
    ]
    assert (1 / 7 + 1 / 3) + 1 != (1 + 1 / 3) + 1 / 7
    for order in (groups, groups[::-1]):
        sampler = make_sampler(spec)
        for pair_id in range(1, 8):
            sampler.add_pair(pair_id, EXECUTION)
        sampler.observe(1, order)
        assert sampler.evidence.current(1, "ml", 1)[0] == (1 / 7 + 1 / 3) + 1


def test_S01_draws_after_resume_are_identical():
    spec = {f"t{i:02d}": (f"d{i % 5}", f"e{i % 3}") for i in range(40)}

    def run(sampler, start, stop):
        drawn = []
        for step in range(start, stop):
            samples = sampler.draw(8)
            drawn.append([(s.task.id, s.reason, s.tag, s.capability) for s in samples])
            outcomes = [{1: P if (step + j) % 3 else F, 2: NA if j else P, 3: F} for j in range(4)]
            sampler.observe(step + 1, [group(s.task.id, s.task.tags, *outcomes) for s in samples])
            if step == 3:
                sampler.add_pair(3, DEBUGGING)
            if step == 6:
                sampler.forget(1)
        return drawn

    unbroken = make_sampler(spec, seed=42, min_discovery_probability=0.1, pair_quota=0.25)
    for pair_id in (1, 2):
        unbroken.add_pair(pair_id, EXECUTION)
    first = run(unbroken, 0, 5)
    state = unbroken.state_dict()
    global_state = np.random.get_state()[1].copy()
    rest = run(unbroken, 5, 10)
    resumed = make_sampler(spec, seed=999, min_discovery_probability=0.1, pair_quota=0.25)
    resumed.load_state_dict(state)
    assert run(resumed, 5, 10) == rest
    assert rest != first
    assert resumed.state_dict() == unbroken.state_dict()
    assert (np.random.get_state()[1] == global_state).all()


def test_S02_a_tag_returns_after_a_judge_outage_of_20_steps():
    spec = {f"t{i:02d}": ("dark" if i < 10 else "light",) for i in range(40)}
    sampler = make_sampler(spec, seed=8, min_discovery_probability=0.1, pair_quota=0.25)
    sampler.add_pair(1, EXECUTION)
    counts = []
    for step in range(200):
        samples = sampler.draw(8)
        assert len(samples) == 8
        assert sampler.discovery_probability >= 0.1
        counts.append(sum(s.task.tags == ("dark",) for s in samples))
        outage = step < 20
        sampler.observe(
            step + 1,
            [
                group(
                    s.task.id,
                    s.task.tags,
                    *([{}] * 4 if outage and s.task.tags == ("dark",) else [{1: P}, {1: F}] * 2),
                )
                for s in samples
            ],
        )
    assert all(f"t{i:02d}" in sampler.ledger.num_draws for i in range(40))
    assert sum(counts[20:40]) > 0
    assert sum(counts[100:]) > 100, "with evidence again, the tag gets its share of 8 · 100 draws"
    assert sampler.coverage.value() == 1.0


def test_S03_all_rewards_zero_costs_exactly_b_tasks_per_step():
    spec = {f"t{i}": ("ml",) for i in range(20)}
    sampler = make_sampler(spec, min_discovery_probability=0.1, pair_quota=0.25)
    sampler.add_pair(1, EXECUTION)
    for step in range(30):
        samples = sampler.draw(8)
        assert len(set(ids(samples))) == 8
        sampler.observe(step + 1, [group(s.task.id, s.task.tags, *[{1: F}] * 8) for s in samples])
    assert sum(sampler.ledger.num_draws.values()) == 30 * 8


def test_query_for_the_next_iteration_has_no_decay():
    sampler = covered_sampler({"a": ("ml",)})
    state = sampler.state_dict()
    assert state["version"] == 1
    assert state["evidence"]["accumulators"] == {1: {"ml": (1.0, 1.0, 1)}}


def test_versions_never_go_back():
    sampler = covered_sampler({"a": ("ml",)})
    with pytest.raises(ValueError, match="version 0 was observed after 1"):
        sampler.observe(0, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_discovery_probability": 1.5}, r"min_discovery_probability must be in \[0, 1\]"),
        ({"pair_quota": 0.0}, r"curriculum\.pair_quota must be in \(0, 1\], got 0"),
        ({"gamma_unobs": 2.0}, r"curriculum\.gamma_unobs"),
    ],
)
def test_bad_values_name_their_key(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_sampler({"a": ()}, **changes)


def test_foreign_state_and_double_pairs_are_refused():
    sampler = covered_sampler({"a": ()})
    with pytest.raises(ConfigError, match=r"'vade', but curriculum\.sampler is 'capability'"):
        sampler.load_state_dict({"kind": "vade"})
    with pytest.raises(ValueError, match="pair 1 is already"):
        sampler.add_pair(1, EXECUTION)
