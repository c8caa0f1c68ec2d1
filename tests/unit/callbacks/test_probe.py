"""The health probe: the engine's log-probabilities against the trainer's."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from arise.aio import EventLoopThread
from arise.callbacks.probe import LogprobProbe
from arise.inference.base import SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.inference.transformers import TransformersEngine
from arise.modules.policy_lm import PolicyLM

CONFIG = LlamaConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    vocab_size=61,
    max_position_embeddings=128,
    initializer_range=0.3,
)


def model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(CONFIG)


def trainer(seed: int, layout: str, temperature: float = 1.0) -> PolicyLM:
    return PolicyLM(
        model(seed),
        temperature=temperature,
        chunk_tokens=16,
        layout=layout,
        activation_checkpointing=False,
    )


def measure(
    engine: TransformersEngine, policy: PolicyLM, sampling: SamplingParams
) -> dict[str, float]:
    loop = EventLoopThread()
    try:
        loop.run(engine.start())
        probe = LogprobProbe(loop=loop, engine=engine, sampling=sampling)
        first = probe.measure(policy, is_asking=True)
        # It draws from no generator and leaves no session behind.
        assert probe.measure(policy, is_asking=True) == first
        return first
    finally:
        loop.run(engine.stop())
        loop.close()


@pytest.mark.parametrize("layout", ["packed", "rows"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_T16_the_probe_measures_the_gap(layout: str, temperature: float) -> None:
    engine = TransformersEngine(
        model=lambda: model(0),
        device="cpu",
        dtype="float32",
        max_context_tokens=64,
        max_sessions=4,
    )
    sampling = SamplingParams(temperature=temperature)
    same = measure(engine, trainer(0, layout, temperature), sampling)
    other = measure(engine, trainer(1, layout, temperature), sampling)
    assert set(same) == {"engine/probe_mean_logprob_gap", "engine/probe_max_logprob_gap"}
    assert 0 <= same["engine/probe_mean_logprob_gap"] <= same["engine/probe_max_logprob_gap"] < 1e-4
    assert other["engine/probe_mean_logprob_gap"] > 0.5


def test_an_engine_that_does_not_answer_gives_no_figure() -> None:
    engine = ScriptedEngine(
        script={}, encode=lambda text: [1], end_token_id=0, max_context_tokens=64
    )
    loop = EventLoopThread()
    probe = LogprobProbe(loop=loop, engine=engine, sampling=SamplingParams())
    assert probe.measure(trainer(0, "rows"), is_asking=True) == {}
    asyncio.run(engine.stop())
    loop.close()
