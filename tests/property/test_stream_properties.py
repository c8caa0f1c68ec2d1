"""The account holds at any moment, whatever happens in whatever order; so does the bound."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from arise.agents.groups import FinishedGroup
from arise.agents.stream import RolloutStream
from arise.algorithms.staleness import oldest_version
from streams import HandEngine, InstantMachines, admission, make_stream, settle

BATCH = 2
ETA = st.integers(min_value=0, max_value=3)
# Which thing to do next, and a number to choose with.
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["answer", "answer", "answer", "turn", "fail", "train", "admit", "cut"]),
        st.integers(min_value=0, max_value=1000),
    ),
    max_size=60,
)


class Trainer:
    """Admits, trains and advances like the callbacks, and keeps books of its own."""

    def __init__(self, eta: int, *, lockstep: bool) -> None:
        self.engine = HandEngine(is_concurrent=not lockstep)
        self.machines = InstantMachines()
        self.eta = eta
        self.stream: RolloutStream = make_stream(
            self.engine,
            self.machines,
            eta=eta,
            batch=BATCH,
            rollouts=2,
            episodes=3,
            deterministic=lockstep,
        )
        self.seen: Counter[str] = Counter()
        self.waiting: asyncio.Task[list[FinishedGroup]] | None = None

    def check(self) -> None:
        account = self.stream.account
        held = [one.serial for one in self.stream.admissions]
        account.require(held)
        assert len(held) <= (self.eta + 1) * BATCH
        assert self.machines.num_alive <= 3
        closed = account.num_trained + account.dropped.total() + account.failed.total()
        assert account.num_started == self.seen["started"] == closed + len(held)
        assert account.num_trained == self.seen["trained"]
        assert account.failed.total() == self.seen["failed"]

    async def admit(self) -> None:
        first = self.stream.account.num_started
        new = [
            admission(serial, self.engine.version)
            for serial in range(first, first + self.stream.num_free)
        ]
        self.seen["started"] += len(new)
        await self.stream.admit(new, version=self.engine.version)

    async def train(self) -> None:
        """Wait for a batch; if it is there, train it and go on with the next version."""
        if self.waiting is None:
            self.waiting = asyncio.create_task(self.stream.take(BATCH))
            await settle()
        if not self.waiting.done():
            return
        taken, self.waiting = self.waiting.result(), None
        for finished in taken:
            oldest = oldest_version(finished.group.trajectories)
            if oldest is not None:
                assert self.engine.version - oldest <= self.eta
            self.seen["trained" if finished.group.trajectories else "failed"] += 1
        self.engine.version += 1
        await self.stream.advance(self.engine.version)

    async def move(self, what: str, number: int) -> None:
        calls = sorted(self.engine.calls)
        if what == "admit":
            await self.admit()
        elif what == "train":
            await self.train()
        elif what == "cut" and self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None
        elif what in ("answer", "turn") and calls:
            text = "submit" if what == "answer" else "ls"
            await self.engine.answer(calls[number % len(calls)], text)
        elif what == "fail" and calls:
            await self.engine.fail(calls[number % len(calls)])
        await settle()

    async def play(self, moves: list[tuple[str, int]]) -> None:
        for what, number in moves:
            await self.move(what, number)
            self.check()
        if self.waiting is not None:
            self.waiting.cancel()
        await self.stream.close()
        self.check()
        assert self.machines.num_alive == 0


@given(eta=ETA, moves=MOVES, lockstep=st.booleans())
@settings(max_examples=40, deadline=None)
def test_started_is_trained_dropped_failed_and_in_flight(
    eta: int, moves: list[tuple[str, int]], lockstep: bool
) -> None:
    asyncio.run(Trainer(eta, lockstep=lockstep).play(moves))
