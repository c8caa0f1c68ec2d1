"""The recording proxy with a real vLLM server behind it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from arise.agents.gate import GenerationGate
from arise.agents.proxied import CallBudgets, ProxiedEpisode
from arise.agents.proxy import RecordingProxy
from arise.agents.recording import PolicySession
from arise.agents.rendering import ChatRenderer
from arise.inference.base import SamplingParams
from arise.inference.weights import fingerprints, verify
from arise.types import FinishReason, Trajectory
from engines import CONTEXT, LOADER, policy, run_engine, scored, vllm_engine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

EPISODES = 4


def test_T02_what_vllm_samples_is_recorded_token_by_token(vllm_url: str) -> None:
    """Four programs with three calls each, and one that goes away in the middle of a reply."""
    engine = vllm_engine(vllm_url)
    renderer = ChatRenderer(LOADER.tokenizer(), observation_role="user")
    proxy = RecordingProxy()

    async def program(http: aiohttp.ClientSession, key: str) -> None:
        messages = [{"role": "user", "content": "Count the lines of notes.txt."}]
        for number in range(3):
            body = {"messages": messages, "stream": False, "max_tokens": 12}
            headers = {"Authorization": f"Bearer {key}"}
            url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
            async with http.post(url, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                messages.append((await response.json())["choices"][0]["message"])
            messages.append({"role": "user", "content": f"{number} <|im_end|> lines"})

    async def leaves(http: aiohttp.ClientSession, key: str) -> None:
        body = {"messages": [{"role": "user", "content": "List."}], "max_tokens": 400}
        headers = {"Authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.05), http.post(url, json=body, headers=headers):
                pass

    async def work() -> list[ProxiedEpisode]:
        weights = policy().state_dict()
        report = await engine.load_weights(weights, version=3)
        verify(fingerprints(weights, dtype=engine.dtype), report, version=3)
        gate = GenerationGate(engine, lockstep=False)
        await proxy.start()
        episodes = [_episode(renderer, gate, number) for number in range(EPISODES + 1)]
        try:
            async with aiohttp.ClientSession() as http:
                contexts = [proxy.serving(episode) for episode in episodes]
                *keys, left = [context.__enter__() for context in contexts]
                await asyncio.gather(*(program(http, key) for key in keys), leaves(http, left))
                for _ in range(400):
                    if not await _running(http, vllm_url):
                        break
                    await asyncio.sleep(0.05)
                else:
                    pytest.fail("the reply that nobody waits for is still being generated")
        finally:
            await proxy.stop()
        return episodes

    *played, left = run_engine(engine, work)
    assert left.num_calls == 0
    assert left.session.turns == []
    model = policy()
    for episode in played:
        trajectory = Trajectory(
            task_id="t",
            rollout=0,
            turns=tuple(episode.session.turns),
            finish_reason=FinishReason.SUBMITTED,
            task_reward=0.0,
        )
        assert len(trajectory.rows) == 1
        history: list[int] = []
        for turn in trajectory.turns:
            history += turn.prompt_token_ids
            expected = scored(model, history, turn.token_ids)
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)
            assert set(turn.policy_versions) == {3}
            history += turn.token_ids


def _episode(renderer: ChatRenderer, gate: GenerationGate, number: int) -> ProxiedEpisode:
    session = PolicySession(
        session=(7, number),
        renderer=renderer,
        generate=gate.generate,
        sampling=SamplingParams(temperature=1.0),
        seed_parts=(number,),
        context_tokens=CONTEXT,
    )
    return ProxiedEpisode(
        session, CallBudgets(max_turns=3, max_output_tokens=400, max_refused_calls=2)
    )


async def _running(http: aiohttp.ClientSession, url: str) -> float:
    """Requests that the server works on."""
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    name = "vllm:num_requests_running"
    lines = [line for line in text.splitlines() if line.startswith(name)]
    assert lines
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
