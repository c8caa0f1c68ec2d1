"""Random histories of the pool against an independent model of the life cycle."""

import json
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from arise.rubrics.pool import Refinement, RubricPool
from arise.rubrics.proposals import PairProposal
from arise.types import Outcome, Verdict

MAX_PAIRS, MAX_NEW = 5, 3
TITLES = st.sampled_from(["a", "A", " b", "c", "d", "e", "f", "g", ""])
WINDOW = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(list(Outcome))), min_size=0, max_size=40
)
UPDATE = st.tuples(WINDOW, st.lists(TITLES, max_size=6), st.booleans())


def make_pool() -> RubricPool:
    return RubricPool(max_pairs=MAX_PAIRS, max_new_pairs=MAX_NEW, max_text_chars=100)


def proposal(title: str) -> PairProposal:
    return PairProposal(
        title=title,
        capability="debugging",
        applicability="x",
        fail_condition="y",
        pass_condition="z",
        skill="s0",
    )


class Model:
    """The table of the specification with exact fractions, written a second time."""

    def __init__(self) -> None:
        self.pairs: dict[int, tuple[str, bool, int]] = {}
        self.given_ids: list[int] = []

    def update(self, counts: dict[int, tuple[int, int]], titles: list[str], refines: bool) -> None:
        blocked = {title.strip().lower() for title, _, _ in self.pairs.values()} | {""}
        for id_, (num_passes, num) in counts.items():
            title, is_active, revision = self.pairs[id_]
            if num == 0:
                continue
            rate = Fraction(num_passes, num)
            if rate >= Fraction(9, 10):
                del self.pairs[id_]
            elif rate <= Fraction(3, 10):
                self.pairs[id_] = (title, True, revision + (is_active and refines))
            else:
                self.pairs[id_] = (title, False, revision)
        room = min(MAX_NEW, MAX_PAIRS - len(self.pairs))
        for title in titles:
            if title.strip().lower() not in blocked and room:
                id_ = len(self.given_ids) + 1
                self.given_ids.append(id_)
                self.pairs[id_] = (title, False, 0)
                blocked.add(title.strip().lower())
                room -= 1


@settings(deadline=None, max_examples=150)
@given(st.lists(UPDATE, min_size=1, max_size=8))
def test_pool_follows_the_table_and_its_events_rebuild_it(history) -> None:
    pool, model = make_pool(), Model()
    events: list[dict] = []
    snapshots = {}
    for step, (window, titles, refines) in enumerate(history, start=1):
        seen: dict[int, tuple[int, int]] = {pair.id: (0, 0) for pair in pool.pairs}
        for offset, outcome in window:
            ids = sorted(seen)
            id_ = ids[offset] if offset < len(ids) else 999
            pool.observe(f"t{offset}", [Verdict(pair_id=id_, outcome=outcome)])
            if id_ in seen and outcome is not Outcome.NOT_APPLICABLE:
                num_passes, num = seen[id_]
                seen[id_] = (num_passes + (outcome is Outcome.PASS), num + 1)
        assert {id_: pool.counts(id_) for id_ in seen} == seen
        text = f"s{step}" if refines else None
        events += pool.update(
            step,
            pool.decide(eta_low=0.3, eta_high=0.9),
            refinements={
                id_: Refinement(text=text, num_records=1, error="" if refines else "no")
                for id_ in seen
            },
            proposals=[proposal(title) for title in titles],
        )
        model.update(seen, titles, refines)
        assert {
            pair.id: (pair.title, pair.is_active, pair.skill.revision) for pair in pool.pairs
        } == model.pairs
        assert len(pool) <= MAX_PAIRS
        snapshots[step] = pool.state_dict()
    # What counts is what a file can hold.
    events = [json.loads(json.dumps(event)) for event in events]
    created = [event["pair_id"] for event in events if event["type"] == "created"]
    assert created == list(range(1, len(created) + 1))
    for step, snapshot in snapshots.items():
        rebuilt = make_pool()
        rebuilt.restore(events, until_step=step)
        assert rebuilt.state_dict() == snapshot


@settings(deadline=None, max_examples=60)
@given(st.lists(UPDATE, min_size=1, max_size=4), WINDOW)
def test_state_dict_goes_on_in_mid_window(history, window) -> None:
    pool = make_pool()
    for step, (_, titles, _) in enumerate(history, start=1):
        actions = pool.decide(eta_low=0.3, eta_high=0.9)
        pool.update(step, actions, refinements={}, proposals=[proposal(t) for t in titles])
    half = len(window) // 2
    for offset, outcome in window[:half]:
        pool.observe(f"t{offset}", [Verdict(pair_id=offset, outcome=outcome)])
    resumed = make_pool()
    resumed.load_state_dict(pool.state_dict())
    for target in (pool, resumed):
        for offset, outcome in window[half:]:
            target.observe(f"t{offset}", [Verdict(pair_id=offset, outcome=outcome)])
    assert resumed.state_dict() == pool.state_dict()
    assert resumed.decide(eta_low=0.3, eta_high=0.9) == pool.decide(eta_low=0.3, eta_high=0.9)
