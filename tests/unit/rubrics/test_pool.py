"""Pool: windows, acceptance, limits, ids, state."""

import json

import pytest

from arise.errors import ConfigError
from arise.rubrics.events import lifetime_pairs, read_events
from arise.rubrics.lifecycle import Action
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.pool import Refinement, RubricPool
from arise.rubrics.proposals import PairProposal
from arise.types import InjectedSkill, Outcome, Verdict

PASS, FAIL, NA = Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE


def make_pool(**limits: int) -> RubricPool:
    return RubricPool(**{"max_pairs": 64, "max_new_pairs": 8, "max_text_chars": 200, **limits})


def proposal(title: str, **fields: str) -> PairProposal:
    texts = {
        "capability": "execution",
        "applicability": f"{title} applies",
        "fail_condition": f"{title} fails",
        "pass_condition": f"{title} passes",
        "skill": f"do {title}",
    }
    return PairProposal(title=title, **{**texts, **fields})


def add(pool: RubricPool, *titles: str, step: int = 10) -> list[dict]:
    keep = {pair.id: Action.KEEP for pair in pool.pairs}
    return pool.update(step, keep, refinements={}, proposals=[proposal(t) for t in titles])


def see(pool: RubricPool, pair_id: int, *outcomes: Outcome, task: str = "t") -> None:
    for outcome in outcomes:
        pool.observe(task, [Verdict(pair_id=pair_id, outcome=outcome)])


def test_pass_rate_counts_valid_applicable_verdicts_only() -> None:
    pool = make_pool()
    add(pool, "a", "b")
    see(pool, 1, PASS, FAIL, NA, FAIL)
    see(pool, 99, PASS)
    assert pool.counts(1) == (1, 3)
    assert pool.pass_rate(1) == 1 / 3
    assert pool.pass_rate(2) is None
    see(pool, 2, PASS)
    assert pool.mean_rubric_reward() == 2 / 4


def test_J04_judge_outage_leaves_the_valid_verdicts_to_count() -> None:
    pool = make_pool()
    add(pool, "a")
    for rollout in range(8):
        verdicts = [] if rollout < 3 else [Verdict(pair_id=1, outcome=PASS)]
        pool.observe("t", verdicts)
    assert pool.counts(1) == (5, 5)


def test_update_restarts_the_window() -> None:
    pool = make_pool()
    add(pool, "a")
    see(pool, 1, PASS, task="t1")
    assert pool.window_task_ids == ("t1",)
    pool.update(20, {1: Action.KEEP}, refinements={}, proposals=[])
    assert (pool.counts(1), pool.window_task_ids) == ((0, 0), ())


def test_new_skills_are_hidden_and_active_ones_are_injected_in_id_order() -> None:
    pool = make_pool()
    add(pool, "a", "b", "c")
    assert pool.active_skills() == ()
    actions = {1: Action.KEEP, 2: Action.ACTIVATE, 3: Action.ACTIVATE}
    pool.update(20, actions, refinements={}, proposals=[])
    assert pool.active_skills() == (
        InjectedSkill(pair_id=2, revision=0, text="do b"),
        InjectedSkill(pair_id=3, revision=0, text="do c"),
    )


def test_refinement_changes_text_and_revision_only() -> None:
    pool = make_pool()
    add(pool, "a")
    pool.update(20, {1: Action.ACTIVATE}, refinements={}, proposals=[])
    before = pool[1]
    texts = {1: Refinement(text="do it at once", num_records=3)}
    (event,) = pool.update(30, {1: Action.REFINE}, refinements=texts, proposals=[])
    assert pool.active_skills() == (InjectedSkill(pair_id=1, revision=1, text="do it at once"),)
    assert (pool[1].rubric, pool[1].created_at) == (before.rubric, before.created_at)
    assert (event["old_text"], event["text"], event["num_records"]) == ("do a", "do it at once", 3)


@pytest.mark.parametrize(
    ("refinement", "reason"),
    [
        (None, "not_refined"),
        (Refinement(text=None, num_records=2, error="outage"), "outage"),
        (Refinement(text="x" * 201, num_records=2), "refinement_too_long"),
    ],
)
def test_failed_refinement_keeps_the_text_and_the_skill_active(
    refinement: Refinement | None, reason: str
) -> None:
    pool = make_pool()
    add(pool, "a")
    pool.update(20, {1: Action.ACTIVATE}, refinements={}, proposals=[])
    texts = {1: refinement} if refinement else {}
    (event,) = pool.update(30, {1: Action.REFINE}, refinements=texts, proposals=[])
    assert (event["type"], event["reason"]) == ("kept", reason)
    assert pool.active_skills() == (InjectedSkill(pair_id=1, revision=0, text="do a"),)


def test_R05_limits_8_new_and_64_in_the_pool() -> None:
    pool = make_pool()
    events = add(pool, *(f"pair {n}" for n in range(12)))
    assert [event["type"] for event in events] == ["created"] * 8 + ["rejected"] * 4
    assert {event["reason"] for event in events[8:]} == {"no_room"}
    for batch in range(7):
        add(pool, *(f"pair {batch} {n}" for n in range(8)), step=20 + batch)
    assert (len(pool), pool.num_free_slots(), pool.num_free_slots(3)) == (64, 0, 3)
    events = add(pool, "one more", step=90)
    assert (len(pool), events[-1]["reason"]) == (64, "no_room")


def test_retirement_makes_room_at_the_same_update() -> None:
    pool = make_pool(max_pairs=2)
    add(pool, "a", "b")
    actions = {1: Action.RETIRE, 2: Action.KEEP}
    pool.update(20, actions, refinements={}, proposals=[proposal("c"), proposal("d")])
    assert [(pair.id, pair.title) for pair in pool.pairs] == [(2, "b"), (3, "c")]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (proposal("x", capability="charm"), "unknown_capability"),
        (proposal("x", fail_condition="  "), "empty_field"),
        (proposal(""), "empty_field"),
        (proposal("x", skill="y" * 201), "too_long"),
        (proposal(" A\n pair"), "duplicate_title"),
    ],
)
def test_invalid_proposals_are_rejected_by_reason(bad: PairProposal, reason: str) -> None:
    pool = make_pool()
    add(pool, "a  Pair")
    events = pool.update(20, {1: Action.KEEP}, refinements={}, proposals=[bad, proposal("good")])
    assert (events[1]["type"], events[1]["reason"]) == ("rejected", reason)
    assert [pair.title for pair in pool.pairs] == ["a  Pair", "good"]


def test_a_pair_retired_now_blocks_its_duplicate_and_may_return_later() -> None:
    pool = make_pool()
    add(pool, "a")
    events = pool.update(20, {1: Action.RETIRE}, refinements={}, proposals=[proposal("A")])
    assert (events[1]["reason"], len(pool)) == ("duplicate_title", 0)
    pool.update(30, {}, refinements={}, proposals=[proposal("A"), proposal("a")])
    assert [(pair.id, pair.title, pair.created_at) for pair in pool.pairs] == [(2, "A", 30)]


def test_R04_ids_come_from_the_pool_and_are_never_reused() -> None:
    pool = make_pool()
    add(pool, "a", "b")
    see(pool, 2, FAIL)
    pool.update(20, {1: Action.RETIRE, 2: Action.ACTIVATE}, refinements={}, proposals=[])
    add(pool, "c", "d", step=30)
    assert [(pair.id, pair.title, pair.is_active) for pair in pool.pairs] == [
        (2, "b", True),
        (3, "c", False),
        (4, "d", False),
    ]
    assert pool.pass_rate(3) is None


def test_retire_event_keeps_what_retention_needs() -> None:
    pool = make_pool()
    add(pool, "a")
    see(pool, 1, PASS, PASS, task="t2")
    see(pool, 1, NA, task="t1")
    (event,) = pool.update(20, {1: Action.RETIRE}, refinements={}, proposals=[])
    assert event["task_ids"] == ["t1", "t2"]
    assert (event["num_passes"], event["num_applicable"], event["pass_rate"]) == (2, 2, 1.0)
    assert event["pair"]["rubric"]["fail_condition"] == "a fails"


def test_state_round_trip_in_mid_window() -> None:
    pool = make_pool()
    add(pool, "a", "b")
    see(pool, 2, PASS, FAIL)
    pool.update(20, {1: Action.RETIRE, 2: Action.ACTIVATE}, refinements={}, proposals=[])
    see(pool, 2, FAIL, PASS, PASS)
    state = pool.state_dict()
    assert json.loads(json.dumps(state))["next_id"] == 3
    other = make_pool()
    other.load_state_dict(state)
    assert (other.pairs, other.next_id, other.counts(2)) == (pool.pairs, 3, (2, 3))
    assert other.state_dict() == state


def test_events_rebuild_the_pool_and_list_the_lifetime(tmp_path) -> None:
    pool = make_pool()
    events = add(pool, "a", "b")
    events += pool.update(20, {1: Action.ACTIVATE, 2: Action.RETIRE}, refinements={}, proposals=[])
    texts = {1: Refinement(text="new", num_records=1)}
    events += pool.update(30, {1: Action.REFINE}, refinements=texts, proposals=[proposal("c")])
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    read = read_events(path, key="rubrics.pool_path")
    rebuilt = make_pool()
    rebuilt.restore(read)
    assert (rebuilt.pairs, rebuilt.next_id) == (pool.pairs, 4)
    rebuilt.restore(read, until_step=20)
    assert [(pair.id, pair.is_active, pair.skill.text) for pair in rebuilt.pairs] == [
        (1, True, "do a")
    ]
    frozen = make_pool(max_pairs=2)
    frozen.import_pairs(lifetime_pairs(read))
    assert [(p.id, p.skill.text, p.is_active, p.created_at) for p in frozen.pairs] == [
        (1, "new", False, 0),
        (2, "do b", False, 0),
        (3, "do c", False, 0),
    ]
    assert (frozen.num_free_slots(), frozen.next_id) == (0, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capability": "charm"}, "'capability' is 'charm'.*understanding, execution"),
        ({"title": " "}, "'title' must be a text"),
        ({"rubric": {"applicability": "a", "fail_condition": ""}}, "'fail_condition' must be"),
        ({"skill": "just text"}, "'skill' must be an object"),
        ({"id": True}, "'id' must be an integer >= 1"),
    ],
)
def test_import_names_place_and_field(change: dict, message: str) -> None:
    pool = make_pool()
    (event,) = add(pool, "a")
    event["pair"] |= change
    with pytest.raises(ConfigError, match=f"pool.jsonl line 1: field {message}"):
        lifetime_pairs([event], where="pool.jsonl")


def test_import_of_a_file_that_is_no_pool(tmp_path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"type": "created"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rubrics.pool_path: .*pool.jsonl line 1 is not JSON"):
        read_events(path, key="rubrics.pool_path")
    with pytest.raises(ConfigError, match="line 1: not an event of the pool: type is 'born'"):
        lifetime_pairs([{"type": "born"}])
    with pytest.raises(ConfigError, match="names pair 7, which is not in the pool"):
        lifetime_pairs([{"type": "hidden", "step": 1, "pair_id": 7}])


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"rubrics.max_pairs must be an integer >= 1, got 0"):
        make_pool(max_pairs=0)


def test_pair_survives_a_round_trip_with_history() -> None:
    pool = make_pool()
    add(pool, "a")
    pool.update(20, {1: Action.ACTIVATE}, refinements={}, proposals=[])
    assert RubricSkillPair.from_dict(pool[1].to_dict(), where="x") == pool[1]
    assert [entry.type for entry in pool[1].history] == ["created", "activated"]
