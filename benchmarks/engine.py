"""How fast the in-process engine plays the laptop-size policy (0.5M parameters).

Prints milliseconds per decode step at two prompt lengths, the prefill's share, and tokens per
second of whole multi-turn episodes whose answers end at different times, with and without the
cache that is kept between turns.

Run: python benchmarks/engine.py [--threads 1] [--sessions 64]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.transformers import TransformersEngine

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    asyncio.run(run(arguments.sessions))


if __name__ == "__main__":
    main()
