import asyncio
from collections.abc import Sequence

import pytest

from arise.agents.gate import GenerationGate
from arise.errors import InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.scripted import ScriptedEngine

pytestmark = pytest.mark.anyio

Session = tuple[int, int]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class BatchLog(ScriptedEngine):
    """A scripted engine that notes what each batch held, and can be held up."""

    def __init__(self, failures: Sequence[tuple[Session, int]] = ()) -> None:
        super().__init__(
            script=lambda session: ["a", "b", "c"],
            encode=lambda text: list(text.encode()),
            end_token_id=0,
            max_context_tokens=1000,
            failures=failures,
        )
        self.batches: list[list[Session]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        self.batches.append([request.session for request in requests])
        await self.is_open.wait()
        return await super().generate(requests)


class BrokenEngine(BatchLog):
    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        raise RuntimeError("out of memory")


class ForgetfulEngine(BatchLog):
    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        return (await super().generate(requests))[1:]


def request_of(session: Session) -> GenerationRequest:
    return GenerationRequest(session=session, prompt_token_ids=(1,), sampling=SamplingParams())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def ask(gate: GenerationGate, session: Session) -> asyncio.Task[Completion]:
    return asyncio.create_task(gate.generate(request_of(session)))


async def test_lockstep_waits_for_every_live_episode_and_sorts() -> None:
    engine = BatchLog()
    gate = GenerationGate(engine, lockstep=True)
    sessions = [(1, 0), (0, 1), (0, 0)]
    for session in sessions:
        gate.enter(session)
    calls = [ask(gate, session) for session in sessions[:2]]
    await settle()
    assert engine.batches == []
    calls.append(ask(gate, sessions[2]))
    await asyncio.gather(*calls)
    assert engine.batches == [[(0, 0), (0, 1), (1, 0)]]


async def test_lockstep_goes_on_without_an_episode_that_left() -> None:
    engine = BatchLog()
    gate = GenerationGate(engine, lockstep=True)
    for session in ((0, 0), (0, 1)):
        gate.enter(session)
    call = ask(gate, (0, 0))
    await settle()
    assert engine.batches == []
    gate.leave((0, 1))
    await call
    assert engine.batches == [[(0, 0)]]


async def test_an_episode_admitted_while_another_leaves_is_awaited() -> None:
    engine = BatchLog()
    gate = GenerationGate(engine, lockstep=True)
    for session in ((0, 0), (0, 1)):
        gate.enter(session)
    call = ask(gate, (0, 0))
    await settle()
    gate.enter((1, 0))
    gate.leave((0, 1))
    await settle()
    assert engine.batches == []
    await asyncio.gather(call, ask(gate, (1, 0)))
    assert engine.batches == [[(0, 0), (1, 0)]]


async def test_an_episode_admitted_in_the_last_moment_is_awaited_too() -> None:
    engine = BatchLog()
    gate = GenerationGate(engine, lockstep=True)
    gate.enter((0, 0))
    call = ask(gate, (0, 0))
    await asyncio.sleep(0)  # the batch is due, but has not taken its calls yet
    gate.enter((0, 1))
    await settle()
    assert engine.batches == []
    await asyncio.gather(call, ask(gate, (0, 1)))
    assert engine.batches == [[(0, 0), (0, 1)]]


async def test_a_cancelled_call_is_not_in_the_batch() -> None:
    engine = BatchLog()
    gate = GenerationGate(engine, lockstep=True)
    for session in ((0, 0), (0, 1), (0, 2)):
        gate.enter(session)
    cancelled, kept = ask(gate, (0, 0)), ask(gate, (0, 1))
    await settle()
    cancelled.cancel()
    await settle()
    gate.leave((0, 0))
    gate.leave((0, 2))
    await kept
    assert cancelled.cancelled()
    assert engine.batches == [[(0, 1)]]


async def test_when_all_calls_are_cancelled_no_empty_batch_is_sent() -> None:
    engine = BatchLog()
    gate = GenerationGate(engine, lockstep=True)
    gate.enter((0, 0))
    call = ask(gate, (0, 0))
    await asyncio.sleep(0)
    call.cancel()
    await settle()
    assert engine.batches == []
    await ask(gate, (0, 0))
    assert engine.batches == [[(0, 0)]]


async def test_a_call_cancelled_while_the_engine_works_does_not_disturb_the_others() -> None:
    engine = BatchLog()
    engine.is_open.clear()
    gate = GenerationGate(engine, lockstep=False)
    first, second = ask(gate, (0, 0)), ask(gate, (0, 1))
    await settle()
    first.cancel()
    await settle()
    engine.is_open.set()
    assert (await second).token_ids == (97, 0)
    assert engine.batches == [[(0, 0), (0, 1)]]


async def test_an_error_concerns_its_own_call_only() -> None:
    engine = BatchLog(failures=[((0, 0), 0)])
    gate = GenerationGate(engine, lockstep=True)
    for session in ((0, 0), (0, 1)):
        gate.enter(session)
    failed, good = await asyncio.gather(
        ask(gate, (0, 0)), ask(gate, (0, 1)), return_exceptions=True
    )
    assert isinstance(failed, InferenceError)
    assert isinstance(good, Completion)


@pytest.mark.parametrize(
    ("engine_type", "problem"),
    [(BrokenEngine, "out of memory"), (ForgetfulEngine, "asked for 2 answers, got 1")],
)
async def test_an_engine_that_breaks_its_word_fails_every_call(
    engine_type: type[BatchLog], problem: str
) -> None:
    gate = GenerationGate(engine_type(), lockstep=False)
    results = await asyncio.gather(ask(gate, (0, 0)), ask(gate, (0, 1)), return_exceptions=True)
    assert [type(result) for result in results] == [InferenceError, InferenceError]
    assert all(problem in str(result) for result in results)


async def test_without_lockstep_calls_wait_only_for_the_batch_that_runs() -> None:
    engine = BatchLog()
    engine.is_open.clear()
    gate = GenerationGate(engine, lockstep=False)
    for session in ((0, 0), (0, 1), (0, 2), (0, 3)):
        gate.enter(session)
    first = ask(gate, (0, 0))
    await settle()
    others = [ask(gate, (0, 2)), ask(gate, (0, 1))]
    await settle()
    assert engine.batches == [[(0, 0)]]
    engine.is_open.set()
    await asyncio.gather(first, *others)
    assert engine.batches == [[(0, 0)], [(0, 1), (0, 2)]]


class ConcurrentEngine(BatchLog):
    is_concurrent = True


async def test_an_engine_that_batches_by_itself_gets_every_call_at_once() -> None:
    engine = ConcurrentEngine(failures=[((0, 1), 0)])
    gate = GenerationGate(engine, lockstep=True)
    engine.is_open.clear()
    for rollout in range(3):
        gate.enter((0, rollout))
    asked = [asyncio.create_task(gate.generate(request_of((0, rollout)))) for rollout in (1, 0)]
    await asyncio.sleep(0)
    # The third episode is awaited by nobody.
    assert engine.batches == [[(0, 1)], [(0, 0)]]
    engine.is_open.set()
    lost, answered = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(lost, InferenceError)
    assert isinstance(answered, Completion)
