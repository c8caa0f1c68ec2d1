"""Both engines on the bundled policy, for tests that must hold for either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from arise.inference.base import Engine, GenerationRequest, SamplingParams
from arise.inference.transformers import TransformersEngine
from arise.inference.vllm.engine import VLLMEngine
from arise.inference.vllm.server import ServerOptions
from arise.modules.loading import PackagedModel

CONTEXT = 512
LOADER = PackagedModel("arise.tasks.shellworld", "policy")


def policy() -> PreTrainedModel:
    """The trainer's model: float32, eval mode."""
    return LOADER.model().eval()


def server_options(*args: str, start_timeout_s: float = 900.0) -> ServerOptions:
    return ServerOptions(
        dtype="float32",
        max_context_tokens=CONTEXT,
        kv_cache_gib=0.25,
        enforce_eager=True,
        devices=None,
        transfer=None,
        args=args,
        start_timeout_s=start_timeout_s,
    )


def vllm_engine(*urls: str, **changes: Any) -> VLLMEngine:
    options: dict[str, Any] = {
        "model": LOADER.empty_model,
        "max_context_tokens": CONTEXT,
        "log_path": Path("unused.log"),
        "urls": urls,
        "num_servers": None,
        "dtype": "float32",
        "sync": "disk",
        "sync_dir": None,
        "devices": None,
        "kv_cache_gib": 0.25,
        "enforce_eager": True,
        "args": [],
        "start_timeout_s": 900.0,
        "request_timeout_s": 600.0,
        "health_interval_s": 5.0,
        "dead_after_s": 60.0,
        "max_outage_s": 600.0,
        "max_restarts": 2,
        "api_key_env": None,
    }
    return VLLMEngine(**{**options, **changes})


def transformers_engine() -> TransformersEngine:
    return TransformersEngine(
        model=LOADER.empty_model,
        device="cpu",
        dtype="float32",
        max_context_tokens=CONTEXT,
        max_sessions=64,
    )


def run_engine(engine: Engine, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def whole() -> Any:
        await engine.start()
        try:
            return await work()
        finally:
            await engine.stop()

    return asyncio.run(whole())


def request(rollout: int, prompt: Sequence[int], **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        session=(0, rollout),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**{"max_tokens": 8, "seed": 100 + rollout, **sampling}),
    )


def prompt_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 1700, (length,), generator=generator).tolist()


@torch.no_grad()
def scored(
    model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of `tokens` by a full forward pass."""
    ids = torch.tensor([[*prompt, *tokens]])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].double() / temperature
    gathered = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])
    return gathered[len(prompt) - 1 :, 0].tolist()
