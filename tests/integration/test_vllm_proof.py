"""Updates that go wrong on a real vLLM server, by one AdamW step at a learning rate of 5e-8.

A step that small moves log-probabilities by about 1e-5: no probe sees it missing. Checksums do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from arise.errors import WeightSyncError
from arise.inference.base import Completion
from arise.inference.vllm.client import ServerClient
from arise.inference.vllm.engine import VLLMEngine
from arise.inference.weights import fingerprints, verify
from engines import policy, prompt_of, request, run_engine, scored, vllm_engine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

LAYER = "model.layers.1.self_attn.k_proj.weight"


def step_at(lr: float) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The policy's weights before and after one real optimizer step."""
    model = policy()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    ids = torch.tensor([prompt_of(40, seed) for seed in range(4)])
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    return before, dict(model.state_dict())


Fault = Callable[[ServerClient, str], Awaitable[Any]]


async def stale_head(server: ServerClient, folder: str) -> None:
    await server.rpc("faulty_reload", folder)
    await server.rpc("faulty_version", "1")


async def stale_layer(server: ServerClient, folder: str) -> None:
    await server.rpc("faulty_load_without", folder, LAYER)
    await server.rpc("faulty_version", "1")


async def skipped(server: ServerClient, folder: str) -> None:
    await server.rpc("faulty_version", "1")


async def wrong_version(server: ServerClient, folder: str) -> None:
    await server.rpc("arise_load", folder)
    await server.rpc("arise_finish", "1")
    await server.rpc("faulty_version", "0")


@pytest.mark.parametrize(
    ("fault", "stamp", "message"),
    [
        (stale_head, "1", r"repacked copies that differ: model\.embed_tokens\.weight"),
        (stale_layer, "1", rf"tensors that differ: {LAYER}"),
        (skipped, "1", r"tensors that differ: model\.embed_tokens\.weight"),
        (wrong_version, "0", "engine reports version 0, sent was 1"),
        (wrong_version, "1", r"workers are at version \[0\], tokens are stamped '1'"),
    ],
)
def test_W04_an_update_that_went_wrong_is_seen_at_a_step_of_5e_8(
    vllm_url: str, fault: Fault, stamp: str, message: str
) -> None:
    before, after = step_at(5e-8)
    engine = vllm_engine(vllm_url)

    async def work() -> None:
        report = await engine.load_weights(before, version=0)
        verify(fingerprints(before), report, version=0)
        updates, sync, pool = engine._updates, engine._sync, engine._pool
        assert updates is not None
        assert sync is not None
        assert pool is not None
        (server,) = pool.alive
        sent = {name: t for name, t in after.items() if name != "lm_head.weight"}
        await sync.send([server], sent, dtype=torch.float32)
        await fault(server, str(sync.folder))
        await server.post("/update_weight_version", {"new_version": stamp})
        verify(fingerprints(after), await updates.report(server), version=1)

    with pytest.raises(WeightSyncError, match=message):
        run_engine(engine, work)


def test_a_step_of_5e_8_that_arrives_passes(vllm_url: str) -> None:
    before, after = step_at(5e-8)
    engine = vllm_engine(vllm_url)

    async def work() -> None:
        for version, weights in enumerate((before, after)):
            report = await engine.load_weights(weights, version=version)
            verify(fingerprints(weights), report, version=version)
            assert set(report.derived) == {"model.embed_tokens.weight"}
            assert len(report.fingerprints) == len(weights)

    run_engine(engine, work)


def test_W05_a_server_that_was_given_nothing_says_so(vllm_url: str) -> None:
    """Whatever an earlier run left there."""
    engine = vllm_engine(vllm_url)
    (answer,) = run_engine(engine, lambda: engine.generate([request(0, prompt_of(5, 0))]))
    assert answer.policy_versions == (-1,) * 8


def test_W02_W07_a_request_in_flight_is_kept_and_goes_on_with_the_new_policy(
    vllm_url: str,
) -> None:
    """Its tokens say which policy sampled them, and each has that policy's log-probability."""
    old, new = policy(), policy()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    prompts = [prompt_of(30, seed) for seed in range(3)]
    engine = vllm_engine(vllm_url)

    async def work() -> list[Completion]:
        await load(engine, old.state_dict(), 6)
        asked = asyncio.create_task(
            engine.generate([request(r, p, max_tokens=400) for r, p in enumerate(prompts)])
        )
        # So that the update falls between two tokens, however fast the machine is.
        await engine.generate([request(9, prompt_of(4, 9), max_tokens=20)])
        assert not asked.done()
        await load(engine, new.state_dict(), 7)
        return await asked

    answers = run_engine(engine, work)
    assert all(set(answer.policy_versions) == {6, 7} for answer in answers)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert list(answer.policy_versions) == sorted(answer.policy_versions)
        count = answer.policy_versions.count(6)
        by_old = scored(old, prompt, answer.token_ids)
        by_new = scored(new, prompt, answer.token_ids)
        assert answer.logprobs[:count] == pytest.approx(by_old[:count], abs=1e-4)
        assert answer.logprobs[count:] == pytest.approx(by_new[count:], abs=1e-4)


async def load(engine: VLLMEngine, weights: Mapping[str, Tensor], version: int) -> None:
    report = await engine.load_weights(weights, version=version)
    verify(fingerprints(weights), report, version=version)
