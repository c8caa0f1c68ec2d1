"""Overhead of the recording proxy against an engine that answers at once.

    python benchmarks/proxy.py

For 1, 64 and 256 calls in flight: milliseconds a call takes through the proxy (HTTP, rendering,
merging into rows, recording), and the same HTTP server and client with an answer that is ready, on
the same machine and event loop. The aim is an overhead of at most 5 ms at 64 in flight (median).

Two engines. One answers at once, so that all calls are at the proxy at the same moment, always: a
call's time with N in flight is then N times the loop's work for one, `ms of work` (time by number
of calls). The other takes 0.5 to 1.5 s for a reply, as models do: the calls in flight are with the
engine, and what is left of a call's time, the engine's subtracted, is what an agent waits for the
proxy.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from arise.agents.gate import GenerationGate
from arise.agents.proxied import CallBudgets, ProxiedEpisode
from arise.agents.proxy import RecordingProxy
from arise.agents.recording import PolicySession
from arise.agents.rendering import ChatRenderer
from arise.errors import InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.modules.loading import RandomModel

_IN_FLIGHT = (1, 64, 256)
_TURNS = 8
_REPLY = "I look at it."
_CONTENT = "Here are twelve words that a tool gave back to the agent. "

Ask = Callable[[int, list[dict[str, str]]], Awaitable[dict[str, str]]]
Latency = Callable[[int], float]


def at_once(_: int) -> float:
    """Seconds of the engine for a reply to an agent."""
    return 0.0


def as_a_model(number: int) -> float:
    """0.5 to 1.5 s, another for each agent, so that they do not go in step."""
    return 0.5 + (number * 0.6180339887) % 1.0


class TimedEngine(ScriptedEngine):
    """A scripted engine that takes its time.

    Args:
        latency: Seconds for a reply to an agent.
        options: Of `ScriptedEngine`.
    """

    is_concurrent = True

    def __init__(self, *, latency: Latency, **options: Any) -> None:
        super().__init__(**options)
        self._latency = latency

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        """Answer after a while; requests come one by one."""
        await asyncio.sleep(max(self._latency(request.session[0]) for request in requests))
        return await super().generate(requests)


async def conversation(number: int, ask: Ask, latency: Latency, waits: list[float]) -> None:
    """One agent: a few turns, each with the history so far."""
    messages = [{"role": "user", "content": _CONTENT * 4}]
    for _ in range(_TURNS):
        started = time.perf_counter()
        messages.append(await ask(number, messages))
        waits.append(1e3 * (time.perf_counter() - started - latency(number)))
        messages.append({"role": "user", "content": _CONTENT})


async def measure(count: int, ask: Ask, latency: Latency) -> tuple[float, float, float]:
    """Median and 95th percentile of a call, and time by number of calls, in milliseconds."""
    waits: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(*(conversation(number, ask, latency, waits) for number in range(count)))
    total = 1e3 * (time.perf_counter() - started)
    ordered = sorted(waits)
    return statistics.median(ordered), ordered[int(0.95 * len(ordered))], total / len(ordered)


async def through_proxy(
    count: int, http: aiohttp.ClientSession, latency: Latency
) -> tuple[float, float, float]:
    """Calls that are rendered, answered by the engine and recorded."""
    tokenizer = RandomModel(
        seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
    ).tokenizer()
    engine_type = ScriptedEngine if latency is at_once else partial(TimedEngine, latency=latency)
    engine = engine_type(
        script=lambda _: [_REPLY] * _TURNS,
        encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        end_token_id=tokenizer.eos_token_id,
        max_context_tokens=100_000,
    )
    gate = GenerationGate(engine, lockstep=False)
    renderer = ChatRenderer(tokenizer, observation_role="user")
    proxy = RecordingProxy()
    await proxy.start()
    budgets = CallBudgets(max_turns=_TURNS, max_output_tokens=100, max_refused_calls=1)
    episodes = []
    for number in range(count):
        session = PolicySession(
            session=(number, 0),
            renderer=renderer,
            generate=gate.generate,
            sampling=SamplingParams(),
            seed_parts=(number,),
            context_tokens=100_000,
        )
        episodes.append(ProxiedEpisode(session, budgets))
    contexts = [proxy.serving(episode) for episode in episodes]
    keys = [context.__enter__() for context in contexts]
    url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"

    async def ask(number: int, messages: Sequence[dict[str, str]]) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {keys[number]}"}
        async with http.post(url, json={"messages": messages}, headers=headers) as response:
            return (await response.json())["choices"][0]["message"]

    try:
        figures = await measure(count, ask, latency)
        rows = {len(episode.session.row_reasons) for episode in episodes}
        assert rows == {0}, "a conversation broke into rows"
        return figures
    finally:
        for context in contexts:
            context.__exit__(None, None, None)
        await proxy.stop()


async def bare(
    count: int, http: aiohttp.ClientSession, latency: Latency
) -> tuple[float, float, float]:
    """The same traffic with an answer that is ready."""
    message = {"role": "assistant", "content": _REPLY}

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(latency(body["number"]))
        return web.json_response({"choices": [{"message": message}]})

    app = web.Application()
    app.add_routes([web.post("/", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"

    async def ask(number: int, messages: Sequence[dict[str, str]]) -> dict[str, str]:
        async with http.post(url, json={"messages": messages, "number": number}) as response:
            return (await response.json())["choices"][0]["message"]

    try:
        return await measure(count, ask, latency)
    finally:
        await runner.cleanup()


async def main() -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for latency, engine in ((at_once, "at once"), (as_a_model, "in 0.5 to 1.5 s")):
            print(f"\nThe engine answers {engine}; its time is subtracted.")
            print(f"{'in flight':>9} {'':>7} {'p50 ms':>8} {'p95 ms':>8} {'ms of work':>11}")
            for count in _IN_FLIGHT:
                await bare(count, http, at_once)  # connections are opened once
                plain = await bare(count, http, latency)
                recorded = await through_proxy(count, http, latency)
                for name, (p50, p95, work) in (("bare", plain), ("proxy", recorded)):
                    shown = f"{work:11.3f}" if latency is at_once else ""
                    print(f"{count:>9} {name:>7} {p50:8.2f} {p95:8.2f} {shown}".rstrip())
                print(f"{count:>9} overhead p50 {recorded[0] - plain[0]:.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
