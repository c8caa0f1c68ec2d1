"""The agent's clock: model calls stop it in lockstep and count otherwise."""

from __future__ import annotations

import asyncio

import pytest

from arise.agents.clock import AgentClock
from arise.inference.base import Completion, GenerationRequest, SamplingParams

REQUEST = GenerationRequest(session=(0, 0), prompt_token_ids=(1,), sampling=SamplingParams())


async def slow_model(request: GenerationRequest) -> Completion:
    await asyncio.sleep(0.2)
    return Completion(token_ids=(1,), logprobs=(-1.0,), policy_versions=(0,), finish_reason="stop")


async def episode(clock: AgentClock, *, own_work_s: float) -> str:
    generate = clock.watched(slow_model)
    try:
        async with clock.limit(0.15) as limit:
            await generate(REQUEST)
            await asyncio.sleep(own_work_s)
            await generate(REQUEST)
            return "finished"
    except TimeoutError:
        assert limit.expired()
        return "timed out"


@pytest.mark.parametrize(
    ("counts_model_calls", "own_work_s", "expected"),
    [
        (False, 0.01, "finished"),
        (False, 0.4, "timed out"),
        (True, 0.01, "timed out"),
    ],
)
def test_what_counts(counts_model_calls: bool, own_work_s: float, expected: str) -> None:
    clock = AgentClock(counts_model_calls=counts_model_calls)
    assert asyncio.run(episode(clock, own_work_s=own_work_s)) == expected


def test_own_time_adds_up_over_calls() -> None:
    """0.15 s in all, not after each model call."""

    async def many_steps() -> int:
        clock = AgentClock(counts_model_calls=False)
        generate = clock.watched(slow_model)
        done = 0
        try:
            async with clock.limit(0.15):
                for _ in range(5):
                    await generate(REQUEST)
                    await asyncio.sleep(0.06)
                    done += 1
        except TimeoutError:
            return done
        return done

    assert asyncio.run(many_steps()) == 2


def test_cancelling_a_model_call_passes_through() -> None:
    async def cancelled() -> bool:
        clock = AgentClock(counts_model_calls=False)
        task = asyncio.create_task(episode(clock, own_work_s=0.0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    assert asyncio.run(cancelled())
