"""Overhead of the recording proxy against an engine that answers at once.

    python benchmarks/proxy.py

For 1, 64 and 256 calls in flight: milliseconds a call takes through the proxy (HTTP, rendering,
merging into rows, recording), and the same HTTP server and client with an answer that is ready, on
the same machine and event loop. The aim is an overhead of at most 5 ms at 64 in flight (median).
A call's time with N in flight is N times that of the loop's work for one, so the work for one
call, `ms of work`, is what the proxy costs; it is measured as time by number of calls.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
from aiohttp import web

from arise.agents.gate import GenerationGate
from arise.agents.proxied import CallBudgets, ProxiedEpisode
from arise.agents.proxy import RecordingProxy
from arise.agents.recording import PolicySession
from arise.agents.rendering import ChatRenderer
from arise.inference.base import SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.modules.loading import RandomModel

_IN_FLIGHT = (1, 64, 256)
_TURNS = 8
_REPLY = "I look at it."
_CONTENT = "Here are twelve words that a tool gave back to the agent. "

Ask = Callable[[int, list[dict[str, str]]], Awaitable[dict[str, str]]]


async def conversation(number: int, ask: Ask, waits: list[float]) -> None:
    """One agent: a few turns, each with the history so far."""
    messages = [{"role": "user", "content": _CONTENT * 4}]
    for _ in range(_TURNS):
        started = time.perf_counter()
        messages.append(await ask(number, messages))
        waits.append(1e3 * (time.perf_counter() - started))
        messages.append({"role": "user", "content": _CONTENT})


async def measure(count: int, ask: Ask) -> tuple[float, float, float]:
    """Median and 95th percentile of a call, and time by number of calls, in milliseconds."""
    waits: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(*(conversation(number, ask, waits) for number in range(count)))
    total = 1e3 * (time.perf_counter() - started)
    ordered = sorted(waits)
    return statistics.median(ordered), ordered[int(0.95 * len(ordered))], total / len(ordered)


async def through_proxy(count: int, http: aiohttp.ClientSession) -> tuple[float, float, float]:
    """Calls that are rendered, answered by the engine and recorded."""
    tokenizer = RandomModel(
        seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
    ).tokenizer()
    engine = ScriptedEngine(
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
        figures = await measure(count, ask)
        rows = {len(episode.session.row_reasons) for episode in episodes}
        assert rows == {0}, "a conversation broke into rows"
        return figures
    finally:
        for context in contexts:
            context.__exit__(None, None, None)
        await proxy.stop()


async def bare(count: int, http: aiohttp.ClientSession) -> tuple[float, float, float]:
    """The same traffic with an answer that is ready."""
    message = {"role": "assistant", "content": _REPLY}

    async def answer(request: web.Request) -> web.Response:
        await request.json()
        return web.json_response({"choices": [{"message": message}]})

    app = web.Application()
    app.add_routes([web.post("/", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"

    async def ask(_: int, messages: Sequence[dict[str, str]]) -> dict[str, str]:
        async with http.post(url, json={"messages": messages}) as response:
            return (await response.json())["choices"][0]["message"]

    try:
        return await measure(count, ask)
    finally:
        await runner.cleanup()


async def main() -> None:
    print(f"{'in flight':>9} {'':>7} {'p50 ms':>8} {'p95 ms':>8} {'ms of work':>11}")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for count in _IN_FLIGHT:
            await bare(count, http)  # connections are opened once
            plain, recorded = await bare(count, http), await through_proxy(count, http)
            for name, figures in (("bare", plain), ("proxy", recorded)):
                p50, p95, work = figures
                print(f"{count:>9} {name:>7} {p50:8.2f} {p95:8.2f} {work:11.3f}")
            print(f"{count:>9} overhead p50 {recorded[0] - plain[0]:.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
