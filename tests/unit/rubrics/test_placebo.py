"""The placebo control: shuffled verdicts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from arise.rubrics.placebo import shuffled_reviews
from arise.types import Diagnostic, Outcome, Review, Verdict


def review(outcomes: dict[int, Outcome], rollout: int = 0) -> Review:
    return Review(
        judged_pair_ids=(1, 2, 3),
        verdicts=tuple(
            Verdict(pair_id=id_, outcome=outcome, reason=f"rollout {rollout}")
            for id_, outcome in sorted(outcomes.items())
        ),
        diagnostics=(Diagnostic(kind="gap", behaviour=f"of rollout {rollout}"),),
    )


GROUP = st.lists(
    st.none() | st.dictionaries(st.integers(1, 3), st.sampled_from(Outcome)), max_size=8
).map(lambda group: [None if own is None else review(own, j) for j, own in enumerate(group)])


def rates(reviews: list[Review | None]) -> Counter[tuple[int, Outcome]]:
    return Counter((v.pair_id, v.outcome) for r in reviews if r for v in r.verdicts)


@given(GROUP, st.integers(0, 9))
def test_base_rates_and_places_of_verdicts_stay(group: list[Review | None], seed: int) -> None:
    shuffled = shuffled_reviews(group, seed=seed, iteration=4, task_id="t")
    assert rates(shuffled) == rates(group)
    for before, after in zip(group, shuffled, strict=True):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert list(after.outcomes) == list(before.outcomes)
            assert after.diagnostics == before.diagnostics
    assert shuffled == shuffled_reviews(group, seed=seed, iteration=4, task_id="t")


def test_every_rubric_is_shuffled_by_itself_and_anew_each_iteration() -> None:
    """Eight rollouts, four of which pass both rubrics: over many iterations passes go anywhere."""
    group: list[Review | None] = [
        review({1: outcome, 2: outcome}) for outcome in [Outcome.PASS] * 4 + [Outcome.FAIL] * 4
    ]
    agreements, passes = 0, Counter[int]()
    for iteration in range(400):
        shuffled = shuffled_reviews(group, seed=1, iteration=iteration, task_id="t")
        for slot, own in enumerate(shuffled):
            assert own is not None
            passes[slot] += own.outcomes[1] is Outcome.PASS
            agreements += own.outcomes[1] is own.outcomes[2]
    # Both are means of 0.5; five standard deviations are 0.125 and 0.05.
    assert all(abs(passes[slot] / 400 - 0.5) < 0.125 for slot in range(8))
    assert abs(agreements / 3200 - 0.5) < 0.05
