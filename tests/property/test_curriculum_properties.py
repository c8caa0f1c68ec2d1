"""The sampler against a plain re-computation of Eq. 9 to 12 and 20, over random histories."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arise.curriculum.base import GroupObservation
from arise.curriculum.batch import WeightedUrn
from arise.curriculum.capability import CapabilitySampler
from arise.curriculum.evidence import CAPABILITIES, COLUMN
from arise.types import Capability, Outcome, Task

G = 3
PAIR_IDS = tuple(range(1, 6))
TAGS = ("d0", "d1", "d2")

outcomes = st.dictionaries(st.sampled_from(PAIR_IDS), st.sampled_from(Outcome), max_size=5)
task_sets = st.lists(st.lists(st.sampled_from(TAGS), max_size=3).map(tuple), min_size=1, max_size=8)


@st.composite
def histories(draw):
    """Tags of the tasks, and events: a rubric comes, one goes, groups are trained."""
    tags = draw(task_sets)
    group = st.tuples(
        st.integers(0, len(tags) - 1),
        st.lists(outcomes, min_size=G, max_size=G),
        st.booleans(),
    )
    event = st.one_of(
        st.tuples(st.just("add"), st.sampled_from(PAIR_IDS), st.sampled_from(CAPABILITIES)),
        st.tuples(st.just("forget"), st.sampled_from(PAIR_IDS)),
        st.tuples(st.just("train"), st.lists(group, max_size=4)),
    )
    return tags, draw(st.lists(event, max_size=14))


def make_sampler(tags, **changes) -> CapabilitySampler:
    tasks = [
        Task(id=f"t{i}", instruction="", path=Path(), tests=Path(), tags=row)
        for i, row in enumerate(tags)
    ]
    arguments = {
        "seed": 3,
        "quarantine_after": 2,
        "min_discovery_probability": 0.1,
        "pair_quota": 0.25,
        "gamma_obs": 0.2,
        "gamma_unobs": 0.999,
    }
    return CapabilitySampler(tasks=tasks, **{**arguments, **changes})


class Ledger:
    """The definitions, recomputed from the whole history at every query."""

    def __init__(self, tags) -> None:
        self.tags = tags
        self.pool: dict[int, Capability] = {}
        self.covered = defaultdict(set)
        self.records = defaultdict(set)
        self.accumulators: dict[tuple[str, int], tuple[float, float, int]] = {}

    def forget(self, pair_id: int) -> None:
        del self.pool[pair_id]
        for pairs in (*self.covered.values(), *self.records.values()):
            pairs.discard(pair_id)
        self.accumulators = {k: v for k, v in self.accumulators.items() if k[1] != pair_id}

    def train(self, version: int, task: int, group) -> None:
        for pair_id in self.pool:
            if all(pair_id in verdicts for verdicts in group):
                self.covered[task].add(pair_id)
        added = defaultdict(lambda: [0.0, 0.0])
        for verdicts in group:
            for pair_id, outcome in verdicts.items():
                if pair_id not in self.pool or outcome is Outcome.NOT_APPLICABLE:
                    continue
                size = sum(
                    other in self.pool
                    and self.pool[other] is self.pool[pair_id]
                    and verdict is not Outcome.NOT_APPLICABLE
                    for other, verdict in verdicts.items()
                )
                added[pair_id][outcome is Outcome.FAIL] += 1 / size
        for pair_id, (success, failure) in added.items():
            self.records[task].add(pair_id)
            for tag in set(self.tags[task]):
                s, f, last = self.accumulators.get((tag, pair_id), (0.0, 0.0, version))
                decay = 0.2 * 0.999 ** (version - last - 1) if version > last else 1.0
                new = (decay * s + success, decay * f + failure, version)
                self.accumulators[tag, pair_id] = new

    def coverage(self) -> float:
        sizes = Counter(self.pool.values())
        if not sizes:
            return 0.0
        return sum(
            sum(self.pool[i] is c for i in self.covered[x]) / sizes[c]
            for x in range(len(self.tags))
            for c in sizes
        ) / (len(self.tags) * len(sizes))


def replay(history, **changes) -> tuple[CapabilitySampler, Ledger, int]:
    tags, events = history
    sampler, ledger, version = make_sampler(tags, **changes), Ledger(tags), 0
    for kind, *rest in events:
        if kind == "add" and rest[0] not in ledger.pool:
            sampler.add_pair(*rest)
            ledger.pool[rest[0]] = rest[1]
        elif kind == "forget" and rest[0] in ledger.pool:
            sampler.forget(rest[0])
            ledger.forget(rest[0])
        elif kind == "train":
            version += 1
            groups = []
            for task, verdicts, is_complete in sorted(rest[0], key=lambda entry: f"t{entry[0]}"):
                survivors = verdicts if is_complete else verdicts[1:]
                if is_complete:
                    ledger.train(version, task, verdicts)
                groups.append(
                    GroupObservation(
                        task_id=f"t{task}",
                        tags=tags[task],
                        num_rollouts=G,
                        outcomes=tuple(survivors),
                        rewards=(0.0,) * len(survivors),
                        is_complete=is_complete,
                    )
                )
            sampler.observe(version, groups)
    return sampler, ledger, version


@settings(max_examples=80, deadline=None)
@given(histories())
def test_incremental_state_equals_the_definitions(history):
    sampler, ledger, version = replay(history)
    tags = history[0]
    names = sorted(set().union(*tags))
    assert sampler.coverage.value() == pytest.approx(ledger.coverage(), abs=1e-12)
    assert 0.0 <= sampler.coverage.value() <= 1.0
    assert sampler.discovery_probability >= 0.1
    for x in range(len(tags)):
        assert sampler.coverage.covered(f"t{x}") == ledger.covered[x]
        needs = not ledger.pool or bool(ledger.pool.keys() - ledger.covered[x])
        assert sampler.coverage.outstanding()[x] == needs
    expected = np.zeros((len(names), 5, 2))
    for (tag, pair_id), (success, failure, last) in ledger.accumulators.items():
        decay = 0.999 ** (version - last)
        expected[names.index(tag), COLUMN[ledger.pool[pair_id]]] += (
            decay * success,
            decay * failure,
        )
    np.testing.assert_allclose(sampler.evidence.totals(version)[: len(names)], expected, atol=1e-12)
    members = np.zeros((len(names), 5), dtype=int)
    for x, row in enumerate(tags):
        for capability in {ledger.pool[i] for i in ledger.records[x]}:
            for tag in set(row):
                members[names.index(tag), COLUMN[capability]] += 1
    np.testing.assert_array_equal(sampler.records.num_members, members)


@settings(max_examples=80, deadline=None)
@given(histories(), st.integers(1, 10), st.sets(st.integers(0, 7)), st.sampled_from([0.25, 1.0]))
def test_every_batch_obeys_the_rules(history, num_tasks, in_flight, quota):
    sampler, ledger, _ = replay(history, pair_quota=quota)
    tags = history[0]
    exclude = {f"t{i}" for i in in_flight}
    available = {f"t{i}" for i in range(len(tags))} - exclude - set(sampler.quarantined)
    samples = sampler.draw(num_tasks, exclude)
    ids = [sample.task.id for sample in samples]
    assert len(set(ids)) == len(ids) == min(num_tasks, len(available))
    assert set(ids) <= available
    hits = Counter((s.tag, s.capability) for s in samples if s.reason == "adaptive")
    assert max(hits.values(), default=0) <= sampler.max_hits(num_tasks)
    outstanding = {f"t{i}" for i in np.flatnonzero(sampler.coverage.outstanding())} & available
    for sample in samples:
        position = int(sample.task.id[1:])
        if sample.reason == "adaptive":
            assert sample.tag in sample.task.tags
            assert sample.capability in {ledger.pool[i] for i in ledger.records[position]}
        else:
            assert (sample.tag, sample.capability) == (None, None)
            if sample.reason == "discovery":
                assert sample.task.id in outstanding
            else:
                assert sample.reason == "fallback"
                assert sample.task.id in outstanding or not outstanding
        outstanding.discard(sample.task.id)


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(1, 6))
def test_a_restored_sampler_goes_on_bit_for_bit(history, num_tasks):
    sampler, _, version = replay(history)
    sampler.draw(num_tasks)
    resumed = make_sampler(history[0], seed=1234)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.state_dict() == sampler.state_dict()
    assert resumed.evidence.totals(version).tobytes() == sampler.evidence.totals(version).tobytes()
    for _ in range(3):
        assert resumed.draw(num_tasks) == sampler.draw(num_tasks)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.integers(0, 1000), st.floats(1e-6, 1.0), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
    st.integers(0, 2**32),
)
def test_the_urn_empties_exactly(weights, shuffler, seed):
    items = np.array(sorted(weights), dtype=np.int64)
    urn = WeightedUrn(items, np.array([weights[int(i)] for i in items]))
    generator = np.random.default_rng(seed)
    left = set(weights)
    while left:
        assert urn.num_items == len(left)
        item = urn.draw(generator)
        assert item in left
        gone = item if shuffler.random() < 0.5 else shuffler.choice(sorted(left))
        urn.remove(gone)
        urn.remove(gone)
        urn.remove(2000)
        left.discard(gone)
    assert urn.num_items == 0
