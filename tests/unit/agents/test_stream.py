"""The stream: bound on staleness, order of completion, drops, places, judging, lockstep."""

import asyncio
from typing import Any

import pytest

from arise.agents.groups import FIRST_INDEX, FinishedGroup
from arise.agents.stream import RolloutStream
from arise.errors import AccountingError, ConfigError
from arise.types import FailureKind, Review, SampledTask, Trajectory
from streams import (
    HandEngine,
    InstantMachines,
    admission,
    make_stream,
    settle,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def of(serial: int, rollout: int = 0) -> tuple[int, int]:
    return FIRST_INDEX + serial, rollout


def serials(taken: list[FinishedGroup]) -> list[int]:
    return [finished.admission.serial for finished in taken]


async def begin(stream: RolloutStream, *numbers: int, version: int = 0) -> None:
    await stream.admit([admission(n, version) for n in numbers], version=version)
    await settle()


async def advance(stream: RolloutStream, engine: HandEngine, version: int) -> None:
    engine.version = version
    await stream.advance(version)
    await settle()


def books(stream: RolloutStream) -> tuple[int, int, dict[str, int], dict[str, int], int]:
    account = stream.account
    return (
        account.num_started,
        account.num_trained,
        dict(account.dropped),
        dict(account.failed),
        len(account.in_flight),
    )


async def test_groups_are_taken_whole_in_the_order_of_completion() -> None:
    engine = HandEngine()
    stream = make_stream(engine, eta=1, batch=2, rollouts=2)
    await begin(stream, 0, 1, 2, 3)
    waiting = asyncio.create_task(stream.take(2))
    for session in (of(3, 0), of(1, 1), of(0, 0), of(2, 0), of(3, 1)):
        await engine.answer(session)
    assert not waiting.done(), "one group of two"
    await engine.answer(of(1, 0))
    assert serials(await waiting) == [1, 3], "in the order of admission: 3 was complete first"
    assert stream.task_ids == {"t0", "t1", "t2", "t3"}, "in training is in flight"
    assert books(stream) == (4, 0, {}, {}, 4)
    await advance(stream, engine, 1)
    assert books(stream) == (4, 2, {}, {}, 2)
    assert (stream.task_ids, stream.num_free) == ({"t0", "t2"}, 2)
    await stream.close()


async def test_a_group_that_is_overtaken_is_dropped_when_its_oldest_token_is_too_old() -> None:
    engine, machines = HandEngine(), InstantMachines()
    stream = make_stream(engine, machines, eta=1, batch=1)
    await begin(stream, 0, 1)
    await engine.answer(of(1))
    assert serials(await stream.take(1)) == [1]
    await advance(stream, engine, 1)
    assert books(stream)[2] == {}, "0 may still be trained at step 1: its tokens are 1 old then"
    await begin(stream, 2, version=1)
    await engine.answer(of(2))
    assert serials(await stream.take(1)) == [2]
    await advance(stream, engine, 2)
    assert books(stream) == (3, 2, {"running_too_old": 1}, {}, 0)
    assert of(0) not in engine.calls
    assert (machines.num_alive, stream.task_ids) == (0, set()), "its task may be drawn again"


async def test_finished_groups_are_dropped_too_and_whole() -> None:
    engine = HandEngine()
    stream = make_stream(engine, eta=1, batch=2)
    await begin(stream, 0, 1, 2, 3)
    for serial in (2, 1):
        await engine.answer(of(serial))
    await stream.take(2)
    await advance(stream, engine, 1)
    await begin(stream, 4, 5, version=1)
    waiting = asyncio.create_task(stream.take(2))
    await settle()
    for serial in (4, 5):
        await engine.answer(of(serial))
    await engine.answer(of(0), "submit", 0)
    assert serials(await waiting) == [4, 5]
    await advance(stream, engine, 2)
    assert books(stream) == (6, 4, {"finished_too_old": 1, "running_too_old": 1}, {}, 0)


async def test_W07_the_oldest_token_counts_not_the_admission_nor_the_last_one() -> None:
    engine = HandEngine()
    stream = make_stream(engine, eta=1, batch=1, episodes=1)
    await begin(stream, 0, 1)
    await engine.answer(of(0), "ls", 0)
    await advance(stream, engine, 1)
    await engine.answer(of(0), "submit", 1)
    (finished,) = await stream.take(1)
    versions = [turn.policy_versions[0] for turn in finished.group.trajectories[0].turns]
    assert versions == [0, 1], "the episode went on under the new policy"
    await advance(stream, engine, 2)
    assert books(stream)[2] == {}, "1 waited for a place: it has no token and is not old"
    await advance(stream, engine, 3)
    assert books(stream)[2] == {"running_too_old": 1}


async def test_one_answer_may_have_tokens_of_two_versions() -> None:
    engine = HandEngine()
    stream = make_stream(engine, eta=0, batch=1)
    await begin(stream, 0)
    await engine.answer(of(0), "submit", 0, 0, 1)
    (finished,) = await stream.take(1)
    (turn,) = finished.group.trajectories[0].turns
    assert set(turn.policy_versions) == {0, 1}


async def test_more_than_the_bound_is_refused() -> None:
    stream = make_stream(HandEngine(), eta=1, batch=1)
    assert stream.num_free == 2
    with pytest.raises(AccountingError, match="3 groups are in flight, allowed are 2"):
        await begin(stream, 0, 1, 2)
    await stream.close()


async def test_lost_rollouts_and_lost_groups() -> None:
    engine = HandEngine()
    stream = make_stream(engine, eta=1, batch=2, rollouts=2)
    await begin(stream, 0, 1)
    await engine.fail(of(0, 0))
    await engine.answer(of(0, 1))
    await engine.fail(of(1, 0))
    await engine.fail(of(1, 1))
    survivors = [len(one.group.trajectories) for one in await stream.take(2)]
    assert survivors == [1, 0]
    await advance(stream, engine, 1)
    assert books(stream) == (2, 1, {}, {FailureKind.INFERENCE: 1}, 0)


async def test_places_are_kept_and_episodes_begin_in_the_order_of_admission() -> None:
    engine, machines = HandEngine(), InstantMachines()
    stream = make_stream(engine, machines, eta=2, batch=2, rollouts=2, episodes=3)
    await begin(stream, 0, 1, 2)
    assert set(engine.calls) == {of(0, 0), of(0, 1), of(1, 0)}
    await engine.answer(of(1, 0))
    assert set(engine.calls) == {of(0, 0), of(0, 1), of(1, 1)}
    for session in (of(0, 0), of(0, 1), of(1, 1)):
        await engine.answer(session)
    assert set(engine.calls) == {of(2, 0), of(2, 1)}
    assert machines.most_alive <= 3
    await stream.take(2)
    await advance(stream, engine, 1)
    await stream.close()
    assert machines.num_alive == 0


async def test_a_trainer_that_never_comes_does_not_make_groups_pile_up() -> None:
    engine = HandEngine()
    stream = make_stream(engine, eta=2, batch=2, rollouts=1)
    await begin(stream, *range(6))
    for serial in range(6):
        await engine.answer(of(serial))
    assert (stream.num_finished, stream.num_free) == (6, 0)
    assert engine.calls == {}, "nothing more is played until groups are trained"


async def test_an_iteration_waits_only_for_the_verdicts_of_its_own_groups() -> None:
    engine = HandEngine()
    verdicts: dict[str, asyncio.Event] = {f"t{n}": asyncio.Event() for n in range(3)}
    pool: list[Any] = []

    async def review(sample: SampledTask, trajectory: Trajectory, pairs: Any) -> Review:
        await verdicts[sample.task.id].wait()
        return Review(judged_pair_ids=tuple(pairs))

    stream = make_stream(
        engine, eta=1, batch=2, rollouts=2, review=review, pairs=lambda: tuple(pool)
    )
    await begin(stream, 0, 1, 2)
    pool.append(7)
    await engine.answer(of(0, 0))
    pool.append(8)  # born while the group is judged: unjudged for all of it
    for session in (of(0, 1), of(1, 0), of(1, 1), of(2, 0), of(2, 1)):
        await engine.answer(session)
    waiting = asyncio.create_task(stream.take(2))
    for task_id in ("t2", "t0"):
        assert not waiting.done()
        verdicts[task_id].set()
        await settle()
    taken = await waiting
    assert serials(taken) == [0, 2], "1 is not judged yet and nobody waits for it"
    judged = [[review.judged_pair_ids for review in one.reviews if review] for one in taken]
    assert judged == [[(7,)] * 2, [(7, 8)] * 2]
    await stream.close()


async def test_fewer_tasks_than_a_batch_are_trained_as_they_are() -> None:
    engine = HandEngine()
    stream = make_stream(engine, eta=1, batch=4)
    await begin(stream, 0)
    waiting = asyncio.create_task(stream.take(4))
    await settle()
    assert not waiting.done()
    await engine.answer(of(0))
    assert serials(await waiting) == [0]
    assert await stream.take(4) == []


async def test_a_configuration_that_cannot_be_ends_the_run() -> None:
    engine = HandEngine()

    async def review(sample: SampledTask, trajectory: Trajectory, pairs: Any) -> Review:
        raise ConfigError("judge.model is impossible")

    stream = make_stream(engine, review=review)
    await begin(stream, 0)
    await engine.answer(of(0))
    with pytest.raises(ConfigError, match="impossible"):
        await stream.take(1)
    await stream.close()


async def test_a_take_that_is_interrupted_takes_nothing() -> None:
    engine = HandEngine()
    stream = make_stream(engine)
    await begin(stream, 0, 1)
    waiting = asyncio.create_task(stream.take(2))
    await settle()
    waiting.cancel()
    await settle()
    assert [one.serial for one in stream.admissions] == [0, 1]
    for serial in (0, 1):
        await engine.answer(of(serial))
    assert serials(await stream.take(2)) == [0, 1]


async def test_in_lockstep_nothing_is_sent_unless_somebody_waits() -> None:
    engine = HandEngine(is_concurrent=False)
    stream = make_stream(engine, eta=1, batch=1, deterministic=True)
    await begin(stream, 0, 1)
    assert engine.num_batches == 0
    waiting = asyncio.create_task(stream.take(1))
    await settle()
    assert set(engine.calls) == {of(0), of(1)}
    engine.calls[of(1)].set_result(("submit", (0,)))
    await engine.answer(of(0), "ls")
    assert serials(await waiting) == [1]
    assert engine.num_batches == 1, "0 waits with its next call until the new policy is there"
    await advance(stream, engine, 1)
    assert engine.num_batches == 1
    waiting = asyncio.create_task(stream.take(1))
    await settle()
    await engine.answer(of(0))
    (finished,) = await waiting
    versions = [turn.policy_versions[0] for turn in finished.group.trajectories[0].turns]
    assert versions == [0, 1]
    await stream.close()


async def test_in_lockstep_groups_of_one_round_are_taken_by_number_not_by_speed() -> None:
    engine = HandEngine(is_concurrent=False)
    slow = asyncio.Event()

    async def review(sample: SampledTask, trajectory: Trajectory, pairs: Any) -> Review:
        if sample.task.id == "t0":
            await slow.wait()
        return Review()

    stream = make_stream(engine, eta=2, batch=1, deterministic=True, review=review)
    await begin(stream, 0, 1, 2)
    waiting = asyncio.create_task(stream.take(1))
    await settle()
    for session in list(engine.calls):
        engine.calls[session].set_result(("submit", (0,)))
    await settle()
    assert not waiting.done(), "1 and 2 are judged, but 0 was as early"
    slow.set()
    assert serials(await waiting) == [0]
    await stream.close()
