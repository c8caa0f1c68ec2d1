"""Slots: growth, placement and compaction keep every session's keys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arise.inference.slot_cache import Session, SlotCache, SlotTable

HEADS, SIZE = 2, 3


def stamp(key: tuple[int, int], position: int) -> float:
    return 1000.0 * key[0] + 10.0 * key[1] + position / 100


def feed(cache: SlotCache, sessions: list[Session], num_new: int) -> None:
    """Write `num_new` recognisable tokens to the first slots, as a forward pass would."""
    begin = [len(session.token_ids) for session in sessions]
    rows = torch.arange(len(sessions)).repeat_interleave(num_new)
    positions = torch.tensor([b + i for b in begin for i in range(num_new)])
    cache.plan(
        rows=len(sessions), num_keys=int(positions.max()) + 1, new_row=rows, new_position=positions
    )
    values = [
        [stamp(s.key, b + i) for i in range(num_new)] for s, b in zip(sessions, begin, strict=True)
    ]
    states = torch.tensor(values)[:, None, :, None].expand(-1, HEADS, -1, SIZE)
    cache.update(states, -states, 0)
    for session in sessions:
        session.token_ids += [0] * num_new


def assert_intact(cache: SlotCache, sessions: list[Session]) -> None:
    for slot, session in enumerate(sessions):
        keys = cache._keys[0][slot, :, : len(session.token_ids)]
        expected = torch.tensor([stamp(session.key, i) for i in range(len(session.token_ids))])
        assert torch.equal(keys, expected[None, :, None].expand(HEADS, -1, SIZE))
        assert torch.equal(cache._values[0][slot, :, : len(session.token_ids)], -keys)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),
            st.integers(1, 40),
            st.sets(st.integers(0, 3)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_order_of_calls_keeps_every_session(
    calls: list[tuple[list[int], int, set[int]]],
) -> None:
    cache = SlotCache(max_slots=5, max_tokens=400)
    table = SlotTable(cache, max_sessions=5)
    for rows, num_new, dropped in calls:
        sessions = table.place([(0, row) for row in rows])
        assert [s.key for s in sessions] == [(0, row) for row in rows]
        feed(cache, sessions, num_new)
        assert_intact(cache, sessions)
        live = [slot for slot in range(len(sessions)) if slot not in dropped]
        if live:
            order = table.compact(live)
            assert sorted(order) == live
            sessions = [sessions[slot] for slot in order]
            feed(cache, sessions, 1)
            assert_intact(cache, sessions)


def test_the_least_recently_used_session_makes_room() -> None:
    cache = SlotCache(max_slots=2, max_tokens=64)
    table = SlotTable(cache, max_sessions=2)
    for key in ((0, 0), (0, 1), (0, 0), (0, 2)):
        feed(cache, table.place([key]), 3)
    assert len(table.place([(0, 0)])[0].token_ids) == 6
    assert table.place([(0, 1)])[0].token_ids == []


def test_capacity_follows_need_and_restarts_when_nothing_is_kept() -> None:
    cache = SlotCache(max_slots=4, max_tokens=200)
    table = SlotTable(cache, max_sessions=4)
    feed(cache, table.place([(0, 0), (0, 1), (0, 2)]), 60)
    assert cache.shape == (3, 128)
    feed(cache, table.place([(0, 3)]), 190)
    assert cache.shape == (4, 200)
    table.invalidate()
    feed(cache, table.place([(0, 3)]), 5)
    assert cache.shape == (4, 64)


@pytest.mark.parametrize(
    ("cached", "prompt", "kept"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 2, 3], [1, 2], 0),
        ([1, 2, 3], [1, 9, 3, 4], 0),
        ([], [1], 0),
    ],
)
def test_only_a_true_prefix_is_reused(cached: list[int], prompt: list[int], kept: int) -> None:
    session = Session((0, 0), list(cached))
    assert session.resume(tuple(prompt)) == kept
    assert len(session.token_ids) == kept


def test_limits_are_errors() -> None:
    cache = SlotCache(max_slots=1, max_tokens=16)
    with pytest.raises(ValueError, match="2 slots asked for, at most 1"):
        cache.reserve(2)
    with pytest.raises(ValueError, match="17 tokens in a slot, at most 16"):
        cache.plan(
            rows=1, num_keys=17, new_row=torch.zeros(1).long(), new_position=torch.zeros(1).long()
        )
