"""A key-value cache with one slot per episode, kept from an episode's first call to its last.

Shapes: S slots, H key-value heads, L slot capacity in tokens, D head size, B rows of a forward
pass, Q new tokens of a row, K keys that a pass looks at. A slot's tokens lie at its first
positions, so a key's place in the slot is its position in the sequence and rows never shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

SessionKey = tuple[int, int]

_BLOCK = 64
_KEY_MULTIPLE = 8


class SlotCache(Cache):
    """Keys and values of all slots: `[S, H, L, D]` per layer, grown on demand.

    Before each forward pass `plan` says which rows take part and where their new tokens go; the
    model then calls `update` once per layer. Storage starts as zeros and only finished tokens are
    written, so a masked key is always finite and weighs exactly nothing.

    L follows the longest slot closely, an eighth ahead of it at most: a pass over whole slots
    reads memory in one stream, which on CPUs is two to three times faster than skipping the
    unused end of every slot, and the growth costs a few copies in all.

    Args:
        max_slots: Most slots.
        max_tokens: Most tokens a slot can hold.
    """

    def __init__(self, *, max_slots: int, max_tokens: int) -> None:
        super().__init__(layers=[])
        self._max_slots = max_slots
        self._max_tokens = max_tokens
        self._num_slots = 0
        self._capacity = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows: int | Tensor = 0
        self._num_keys = 0
        self._new_row = self._new_position = torch.empty(0, dtype=torch.long)
        self._source: Tensor | None = None
        self._places: dict[int, Tensor] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """S and L: slots and tokens per slot that storage exists for."""
        return self._num_slots, self._capacity

    def reserve(self, num_slots: int) -> None:
        """Make room for this many slots, by doubling up to the limit.

        Raises:
            ValueError: More slots than `max_slots`.
        """
        if num_slots > self._max_slots:
            raise ValueError(f"{num_slots} slots asked for, at most {self._max_slots} allowed")
        if num_slots > self._num_slots:
            doubled = min(2 * self._num_slots, self._max_slots)
            self._resize(max(num_slots, doubled), self._capacity)

    def clear(self) -> None:
        """Drop all storage, so that the next pass starts with slots of its own size."""
        self._keys, self._values, self._num_slots, self._capacity = [], [], 0, 0

    def _resize(self, num_slots: int, capacity: int) -> None:
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                new = old.new_zeros(num_slots, old.shape[1], capacity, old.shape[3])
                new[: old.shape[0], :, : old.shape[2]] = old
                store[layer] = new
        self._num_slots, self._capacity = num_slots, capacity

    def _fit(self, num_keys: int) -> int:
        """Grow until `num_keys` tokens fit; the number of keys a pass should look at."""
        if num_keys > self._max_tokens:
            raise ValueError(f"{num_keys} tokens in a slot, at most {self._max_tokens} allowed")
        if num_keys > self._capacity:
            ahead = _round_up(num_keys + num_keys // 8, _BLOCK)
            limit = _round_up(self._max_tokens, _KEY_MULTIPLE)
            self._resize(self._num_slots, min(ahead, limit))
        if 4 * num_keys >= 3 * self._capacity:
            return self._capacity
        return _round_up(num_keys, _KEY_MULTIPLE)

    def plan(
        self,
        *,
        rows: Sequence[int] | int,
        num_keys: int,
        new_row: Tensor,
        new_position: Tensor,
        source: Tensor | None = None,
    ) -> int:
        """Prepare the next forward pass.

        Args:
            rows: Slots taking part, in batch order, or a number n for the first n (no copy).
            num_keys: Keys to look at: the longest row after this pass.
            new_row: int64[N], slot of each new token.
            new_position: int64[N], its position in the slot.
            source: int64[N], its index in the flattened [B, Q] batch; `None` if all B·Q count.

        Returns:
            K, at least `num_keys`: the width the attention mask must have.
        """
        self._num_keys = self._fit(num_keys)
        self._rows = rows if isinstance(rows, int) else _index(rows, new_row.device)
        self._new_row, self._new_position, self._source = new_row, new_position, source
        self._places = {}
        return self._num_keys

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens' keys and values, each `[B, H, Q, D]`; return all of the rows'.

        Returns:
            Keys and values `[B, H, K, D]`.
        """
        while len(self._keys) <= layer_idx:
            for store, states in ((self._keys, key_states), (self._values, value_states)):
                shape = (self._num_slots, states.shape[1], self._capacity, states.shape[3])
                store.append(states.new_zeros(shape))
        keys = self._write(self._keys[layer_idx], key_states)
        values = self._write(self._values[layer_idx], value_states)
        return keys, values

    def _write(self, store: Tensor, states: Tensor) -> Tensor:
        num_heads, size = store.shape[1], store.shape[3]
        if num_heads not in self._places:
            head = torch.arange(num_heads, device=store.device)
            place = (self._new_row[:, None] * num_heads + head) * self._capacity
            self._places[num_heads] = (place + self._new_position[:, None]).view(-1)
        new = states.transpose(1, 2).reshape(-1, num_heads, size)
        if self._source is not None:
            new = new.index_select(0, self._source)
        store.view(-1, size).index_copy_(0, self._places[num_heads], new.reshape(-1, size))
        if isinstance(self._rows, int):
            return store[: self._rows, :, : self._num_keys]
        return store[:, :, : self._num_keys].index_select(0, self._rows)

    def move(self, targets: Sequence[int], sources: Sequence[int], *, num_tokens: int) -> None:
        """Copy the first tokens of slots `sources[i]` to `targets[i]`, all at once."""
        if not self._keys or not targets:
            return
        target = _index(targets, self._keys[0].device)
        source = _index(sources, self._keys[0].device)
        for store in (*self._keys, *self._values):
            used = store[:, :, :num_tokens]
            used.index_copy_(0, target, used.index_select(0, source))

    def zero(self, slot: int) -> None:
        """Wipe a slot: a NaN left in it would pass through any mask."""
        for store in (*self._keys, *self._values):
            store[slot].zero_()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys that the planned pass looks at."""
        return self._num_keys

    @property
    def is_compileable(self) -> bool:
        """Storage may move when it grows."""
        return False


@dataclass(slots=True, eq=False)
class Session:
    """What the cache knows of one episode.

    Attributes:
        key: (task, rollout).
        token_ids: Tokens whose keys are in the slot, from position 0 on.
        last_used: Number of the call that last used it; the oldest makes room first.
    """

    key: SessionKey
    token_ids: list[int] = field(default_factory=list)
    last_used: int = 0

    def resume(self, prompt: Sequence[int]) -> int:
        """Number of leading prompt tokens that need no computing; 0 restarts the slot.

        Only a cache that is a true prefix of the prompt counts. At least the last token is always
        computed, since its logits are needed.
        """
        num_cached = len(self.token_ids)
        if num_cached >= len(prompt) or list(prompt[:num_cached]) != self.token_ids:
            self.token_ids = []
        return len(self.token_ids)


class SlotTable:
    """Which session lies in which slot.

    A call's sessions are moved to slots 0 to B-1 in request order. A batch is then a plain slice
    of the storage, and where a session lies depends on the call alone, not on earlier calls.

    Args:
        cache: The storage.
        max_sessions: Most sessions kept; beyond it the least recently used one is dropped and
            computed afresh if it comes back.
    """

    def __init__(self, cache: SlotCache, *, max_sessions: int) -> None:
        self._cache = cache
        self._max_sessions = max_sessions
        self._slots: list[Session | None] = []
        self._num_calls = 0

    def place(self, keys: Sequence[SessionKey]) -> list[Session]:
        """Bring these sessions to the first slots."""
        self._num_calls += 1
        known = {session.key: session for session in self._slots if session}
        sessions = [known.get(key) or Session(key) for key in keys]
        for session in sessions:
            session.last_used = self._num_calls
        others = sorted(
            (s for key, s in known.items() if key not in set(keys)), key=lambda s: -s.last_used
        )[: self._max_sessions - len(sessions)]
        if not any(session.token_ids for session in known.values()):
            self._cache.clear()
        old = {id(session): slot for slot, session in enumerate(self._slots) if session}
        size = max(len(sessions) + len(others), len(self._slots))
        self._cache.reserve(size)
        arranged: list[Session | None] = [*sessions, *[None] * (size - len(sessions))]
        displaced = []
        for session in others:
            if old[id(session)] >= len(sessions):
                arranged[old[id(session)]] = session
            else:
                displaced.append(session)
        free = [slot for slot, session in enumerate(arranged) if session is None]
        for slot, session in zip(free, displaced, strict=False):
            arranged[slot] = session
        self._rearrange(arranged, old)
        return sessions

    def compact(self, live: Sequence[int]) -> list[int]:
        """Bring the sessions in slots `live` (ascending) to the first slots.

        Returns:
            For each of the first `len(live)` slots, the slot its session came from.
        """
        kept = set(live)
        holes = [slot for slot in range(len(live)) if slot not in kept]
        movers = [slot for slot in live if slot >= len(live)]
        old = {id(session): slot for slot, session in enumerate(self._slots) if session}
        order = list(range(len(live)))
        arranged = list(self._slots)
        for hole, mover in zip(holes, movers, strict=True):
            arranged[hole], arranged[mover] = arranged[mover], arranged[hole]
            order[hole] = mover
        self._rearrange(arranged, old)
        return order

    def _rearrange(self, arranged: list[Session | None], old: dict[int, int]) -> None:
        moves = [
            (slot, old[id(session)], len(session.token_ids))
            for slot, session in enumerate(arranged)
            if session and session.token_ids and old[id(session)] != slot
        ]
        self._cache.move(
            [target for target, _, _ in moves],
            [source for _, source, _ in moves],
            num_tokens=max((length for _, _, length in moves), default=0),
        )
        self._slots = arranged

    def release(self, key: SessionKey, *, wipe: bool = False) -> None:
        """Forget a session; `wipe` also zeroes its slot."""
        for slot, session in enumerate(self._slots):
            if session and session.key == key:
                self._slots[slot] = None
                if wipe:
                    self._cache.zero(slot)

    def invalidate(self) -> None:
        """Declare every key stale; sessions stay and are computed afresh at their next call."""
        for session in self._slots:
            if session:
                session.token_ids = []


def _index(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
