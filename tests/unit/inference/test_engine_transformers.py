"""The in-process engine against full forward passes of the same model."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from arise.errors import ConfigError, InferenceError, WeightSyncError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.transformers import TransformersEngine
from arise.inference.weights import fingerprints, verify

VOCABULARY = 61
CONTEXT = 96
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    # Far from the default 0.02, so that a wrong position or mask moves log-probabilities by units.
    "initializer_range": 0.3,
}


def llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()


def qwen3(seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "head_dim": 16, **changes})).eval()


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=VOCABULARY,
        n_positions=128,
        initializer_range=0.3,
    )
    return GPT2LMHeadModel(config).eval()


FAMILIES = {"llama": llama, "qwen3": qwen3, "gpt2": gpt2}


def engine_of(build: Callable[[], PreTrainedModel], **changes: Any) -> TransformersEngine:
    arguments: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "max_context_tokens": CONTEXT,
        "max_sessions": 8,
    }
    return TransformersEngine(model=build, **{**arguments, **changes})


def run(engine: TransformersEngine, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def whole() -> Any:
        await engine.start()
        try:
            return await work()
        finally:
            await engine.stop()

    return asyncio.run(whole())


def request(session: tuple[int, int], prompt: Sequence[int], **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        session=session,
        prompt_token_ids=prompt,
        sampling=SamplingParams(**{"max_tokens": 6, "seed": 100 + session[1], **sampling}),
    )


def prompt_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()


@torch.no_grad()
def recomputed(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    ids = torch.tensor([[*prompt, *tokens]])
    logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].double().log_softmax(-1)
    return logprobs.gather(-1, ids[0, 1:, None])[len(prompt) - 1 :, 0].tolist()


async def play(
    engine: TransformersEngine, lengths: Sequence[int], num_turns: int
) -> list[tuple[list[int], Completion]]:
    """Several turns of all sessions; every (prompt, completion)."""
    prompts = {row: prompt_of(length, row) for row, length in enumerate(lengths)}
    calls = []
    for turn in range(num_turns):
        answers = await engine.generate(
            [
                request((0, row), prompt, seed=10 * turn + row, max_tokens=3 + row % 4)
                for row, prompt in prompts.items()
            ]
        )
        for row, answer in enumerate(answers):
            calls.append((prompts[row], answer))
            added = prompt_of(1 + (row + turn) % 3, 50 + row + turn)
            prompts[row] = [*prompts[row], *answer.token_ids, *added]
    return calls


@pytest.mark.parametrize("family", FAMILIES)
def test_T13_multi_turn_logprobs_equal_a_full_forward(family: str) -> None:
    engine = engine_of(FAMILIES[family])
    calls = run(engine, lambda: play(engine, (4, 23, 1, 11, 7), 4))
    model = FAMILIES[family]()
    assert len(calls) == 20
    for prompt, answer in calls:
        assert answer.logprobs == pytest.approx(
            recomputed(model, prompt, answer.token_ids), abs=1e-5
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_families_keep_their_cache(family: str) -> None:
    engine = engine_of(FAMILIES[family])

    async def work() -> bool:
        return engine.keeps_cache

    assert run(engine, work)


def test_a_turn_computes_only_what_is_new() -> None:
    model = llama()
    fed: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda _m, args, _o: fed.append(args[0].numel()))
    engine = engine_of(lambda: model)
    prompt = prompt_of(20, 1)

    async def work() -> None:
        fed.clear()
        (first,) = await engine.generate([request((0, 0), prompt, max_tokens=5)])
        assert fed == [20, 1, 1, 1, 1]
        fed.clear()
        # The last sampled token was never fed, so it comes with the two added ones.
        await engine.generate([request((0, 0), [*prompt, *first.token_ids, 3, 4], max_tokens=1)])
        assert fed == [3]
        fed.clear()
        await engine.generate([request((0, 0), [9, *prompt[1:], 3, 4], max_tokens=1)])
        assert fed == [22]

    run(engine, work)


@pytest.mark.parametrize("family", FAMILIES)
def test_T13_batch_mates_change_nothing(family: str) -> None:
    lengths = (4, 23, 1, 11, 40)
    together = engine_of(FAMILIES[family])
    batched = run(together, lambda: play(together, lengths, 2))

    async def one_by_one(engine: TransformersEngine) -> list[Completion]:
        return [
            (
                await engine.generate(
                    [request((0, row), prompt, seed=10 * turn + row, max_tokens=3 + row % 4)]
                )
            )[0]
            for turn in range(2)
            for row, (prompt, _) in enumerate(batched[5 * turn : 5 * turn + 5])
        ]

    alone = engine_of(FAMILIES[family])
    for (_, answer), single in zip(batched, run(alone, lambda: one_by_one(alone)), strict=True):
        assert answer.token_ids == single.token_ids
        assert answer.logprobs == pytest.approx(single.logprobs, abs=1e-5)


def test_same_requests_twice_are_bitwise_equal() -> None:
    engine = engine_of(llama)
    requests = [request((0, row), prompt_of(5 + 4 * row, row), max_tokens=8) for row in range(6)]

    async def work() -> None:
        assert await engine.generate(requests) == await engine.generate(requests)

    run(engine, work)
    engines = [engine_of(llama), engine_of(llama)]
    first, second = (run(e, lambda e=e: play(e, (4, 23, 1, 11), 3)) for e in engines)
    assert first == second


def test_more_sessions_than_slots_run_in_waves_with_the_same_answers() -> None:
    lengths = (4, 23, 1, 11, 7)
    narrow, wide = engine_of(llama, max_sessions=2), engine_of(llama)
    few = run(narrow, lambda: play(narrow, lengths, 3))
    many = run(wide, lambda: play(wide, lengths, 3))
    for (_, answer), (_, expected) in zip(few, many, strict=True):
        assert answer.token_ids == expected.token_ids
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_calls_with_changing_sessions_keep_every_cache_right() -> None:
    engine, model = engine_of(llama, max_sessions=5), llama()
    prompts = {row: prompt_of(6 + 5 * row, row) for row in range(5)}
    calls: list[tuple[list[int], Completion]] = []

    async def work() -> None:
        for rows in ([0, 1, 2, 3, 4], [3, 1], [4, 0, 2], [2, 3, 4, 1, 0], [1]):
            answers = await engine.generate([request((0, row), prompts[row]) for row in rows])
            for row, answer in zip(rows, answers, strict=True):
                calls.append((prompts[row], answer))
                prompts[row] = [*prompts[row], *answer.token_ids, row]
        await engine.release((0, 2))
        answer = (await engine.generate([request((1, 7), prompts[2])]))[0]
        calls.append((prompts[2], answer))

    run(engine, work)
    for prompt, answer in calls:
        assert answer.logprobs == pytest.approx(
            recomputed(model, prompt, answer.token_ids), abs=1e-5
        )


def test_long_prompts_are_fed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arise.inference.generation._PREFILL_SCORES", 1)
    engine = engine_of(lambda: llama(max_position_embeddings=1024), max_context_tokens=1024)
    prompts = [prompt_of(length, length) for length in (700, 300, 20)]
    requests = [request((0, row), prompt, max_tokens=3) for row, prompt in enumerate(prompts)]
    answers = run(engine, lambda: engine.generate(requests))
    model = llama(max_position_embeddings=1024)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.logprobs == pytest.approx(
            recomputed(model, prompt, answer.token_ids), abs=3e-5
        )


def test_stop_token_ends_and_is_part_of_the_answer() -> None:
    engine = engine_of(llama)
    prompt = prompt_of(9, 3)

    async def work() -> tuple[Completion, Completion]:
        (free,) = await engine.generate([request((0, 0), prompt, max_tokens=8)])
        stop = free.token_ids[4]
        (ended,) = await engine.generate(
            [request((0, 0), prompt, max_tokens=8, stop_token_ids=(stop,))]
        )
        return free, ended

    free, ended = run(engine, work)
    end = free.token_ids.index(free.token_ids[4]) + 1
    assert ended.token_ids == free.token_ids[:end]
    assert ended.logprobs == free.logprobs[:end]
    assert ended.finish_reason == "stop"


def test_T11_length_appends_nothing() -> None:
    engine = engine_of(llama)
    # Token 60 is the only stop token; the seeds below do not sample it.
    answers = run(
        engine,
        lambda: engine.generate(
            [request((0, row), [1, 2, 3], max_tokens=4, stop_token_ids=(60,)) for row in range(3)]
        ),
    )
    for answer in answers:
        assert answer.finish_reason == "length"
        assert len(answer.token_ids) == len(answer.logprobs) == 4
        assert 60 not in answer.token_ids


def test_the_context_is_never_exceeded_and_a_full_one_fails_alone() -> None:
    engine = engine_of(llama)
    lengths = (CONTEXT - 1, CONTEXT, CONTEXT + 5, 3)
    answers = run(
        engine,
        lambda: engine.generate(
            [request((0, row), prompt_of(n, n), max_tokens=9) for row, n in enumerate(lengths)]
        ),
    )
    assert len(answers[0].token_ids) == 1
    assert answers[0].finish_reason == "length"
    assert isinstance(answers[1], InferenceError)
    assert "fills the context of 96" in str(answers[1])
    assert isinstance(answers[2], InferenceError)
    assert len(answers[3].token_ids) == 9


def test_unusable_prompts_fail_alone() -> None:
    engine = engine_of(llama)
    answers = run(
        engine,
        lambda: engine.generate(
            [request((0, 0), []), request((0, 1), [1, VOCABULARY]), request((0, 2), [1, 2])]
        ),
    )
    assert "empty" in str(answers[0])
    assert "vocabulary of 61" in str(answers[1])
    assert isinstance(answers[2], Completion)


def test_non_finite_logits_fail_alone_and_poison_no_later_session() -> None:
    model = llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[13] = float("nan")
    engine = engine_of(lambda: model, max_sessions=2)

    async def work() -> list[Any]:
        bad, good = await engine.generate(
            [request((0, 0), [13] * 40), request((0, 1), [1, 2, 3], stop_token_ids=(13,))]
        )
        (after,) = await engine.generate([request((0, 2), [4, 5, 6], stop_token_ids=(13,))])
        return [bad, good, after]

    bad, good, after = run(engine, work)
    assert isinstance(bad, InferenceError)
    assert "not finite" in str(bad)
    assert all(math.isfinite(logprob) for logprob in (*good.logprobs, *after.logprobs))


def test_W02_new_weights_are_not_played_with_old_keys() -> None:
    engine, new = engine_of(llama), llama(seed=1)
    prompt = prompt_of(12, 1)

    async def work() -> tuple[list[int], Completion]:
        (first,) = await engine.generate([request((0, 0), prompt)])
        await engine.load_weights(new.state_dict(), version=1)
        longer = [*prompt, *first.token_ids, 5]
        return longer, (await engine.generate([request((0, 0), longer)]))[0]

    longer, second = run(engine, work)
    assert second.logprobs == pytest.approx(recomputed(new, longer, second.token_ids), abs=1e-5)


def test_W07_every_token_carries_the_version_that_sampled_it() -> None:
    engine = engine_of(llama)

    async def work() -> list[Completion]:
        answers = []
        for version in (4, 5):
            await engine.load_weights(llama(seed=version).state_dict(), version=version)
            answers += await engine.generate([request((0, 0), [1, 2, 3], max_tokens=4)])
        return answers

    before, after = run(engine, work)
    assert before.policy_versions == (4, 4, 4, 4)
    assert after.policy_versions == (5, 5, 5, 5)


def test_W05_an_engine_that_was_never_given_weights_says_so() -> None:
    engine, checkpoint = engine_of(llama), llama(seed=3)

    async def work() -> tuple[Any, Any, Any]:
        (fresh,) = await engine.generate([request((0, 0), [1, 2], max_tokens=2)])
        report = await engine.load_weights(checkpoint.state_dict(), version=3)
        (resumed,) = await engine.generate([request((0, 0), [1, 2], max_tokens=2)])
        return fresh, report, resumed

    fresh, report, resumed = run(engine, work)
    assert fresh.policy_versions == (-1, -1)
    assert resumed.policy_versions == (3, 3)
    verify(fingerprints(checkpoint.state_dict()), report, version=3)


def test_bfloat16_engine_reports_what_float32_master_weights_become() -> None:
    engine, trainer = engine_of(llama, dtype="bfloat16"), llama(seed=2)
    report = run(engine, lambda: engine.load_weights(trainer.state_dict(), version=0))
    verify(fingerprints(trainer.state_dict(), dtype=engine.dtype), report, version=0)
    with pytest.raises(WeightSyncError, match="tensors that differ"):
        verify(fingerprints(trainer.state_dict()), report, version=0)


def test_bfloat16_leaves_rotary_frequencies_in_float32() -> None:
    model = llama(head_dim=64)
    engine = engine_of(lambda: model, dtype="bfloat16")
    answers = run(engine, lambda: engine.generate([request((0, 0), [1, 2, 3])]))
    assert isinstance(answers[0], Completion)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert torch.equal(
        model.model.rotary_emb.inv_freq, llama(head_dim=64).model.rotary_emb.inv_freq
    )
    assert model.lm_head.weight.dtype == torch.bfloat16


def test_a_refused_load_changes_nothing() -> None:
    engine = engine_of(llama)

    async def work() -> tuple[Any, Any]:
        before = await engine.generate([request((0, 0), [1, 2, 3])])
        weights = dict(llama(seed=1).state_dict())
        del weights["model.norm.weight"]
        with pytest.raises(WeightSyncError, match=r"missing: model\.norm\.weight"):
            await engine.load_weights(weights, version=1)
        return before, await engine.generate([request((0, 0), [1, 2, 3])])

    before, after = run(engine, work)
    assert before == after


def test_greedy_takes_the_largest_logit() -> None:
    engine, model = engine_of(qwen3), qwen3()
    prompt = prompt_of(6, 2)
    (answer,) = run(
        engine, lambda: engine.generate([request((0, 0), prompt, temperature=0.0, max_tokens=5)])
    )
    with torch.no_grad():
        ids = list(prompt)
        for _ in range(5):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert list(answer.token_ids) == ids[len(prompt) :]
    assert answer.logprobs == (0.0,) * 5


def sliding() -> Qwen3ForCausalLM:
    return qwen3(
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        layer_types=["full_attention", "sliding_attention"],
    )


def linear() -> PreTrainedModel:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        **{**SIZES, "head_dim": 16},
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    return Qwen3_5ForCausalLM(config).eval()


@pytest.mark.parametrize(
    # A linear layer's chunked prefill and its recurrent steps round differently.
    ("build", "kind", "tolerance"),
    [(sliding, "sliding", 1e-5), (linear, "linear", 1e-4)],
)
def test_other_attention_falls_back_to_the_exact_path(
    build: Callable[[], PreTrainedModel],
    kind: str,
    tolerance: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engine_of(build)
    with caplog.at_level(logging.WARNING, "arise"):
        calls = run(engine, lambda: play(engine, (14, 5, 9), 2))
    assert not engine.keeps_cache
    notes = [
        record.message for record in caplog.records if "one request at a time" in record.message
    ]
    assert len(notes) == 1
    assert f"{kind}_attention" in notes[0]
    model = build()
    for prompt, answer in calls:
        assert answer.logprobs == pytest.approx(
            recomputed(model, prompt, answer.token_ids), abs=tolerance
        )


def test_a_model_whose_mask_is_ignored_is_found_by_the_probe() -> None:
    class Blind(LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("attention_mask") is not None:
                kwargs["attention_mask"] = torch.zeros_like(kwargs["attention_mask"])
            return super().forward(*args, **kwargs)

    def build() -> PreTrainedModel:
        torch.manual_seed(0)
        return Blind(LlamaConfig(**SIZES)).eval()

    engine = engine_of(build)
    calls = run(engine, lambda: play(engine, (14, 5), 2))
    model = llama()
    for prompt, answer in calls:
        assert answer.logprobs == pytest.approx(
            recomputed(model, prompt, answer.token_ids), abs=1e-5
        )


def test_the_engine_leaves_a_shared_configuration_alone() -> None:
    config = LlamaConfig(**SIZES)
    trainer = LlamaForCausalLM(config)
    before = copy.copy(trainer.config._attn_implementation)
    engine = engine_of(lambda: LlamaForCausalLM(config))
    run(engine, lambda: engine.generate([request((0, 0), [1, 2])]))
    assert trainer.config._attn_implementation == before


def test_the_event_loop_stays_free_and_cancelling_ends_the_work() -> None:
    engine = engine_of(
        lambda: llama(max_position_embeddings=8192), max_context_tokens=8192, max_sessions=8
    )

    async def work() -> tuple[int, Any]:
        task = asyncio.create_task(
            engine.generate([request((0, row), [1, 2], max_tokens=8000) for row in range(8)])
        )
        ticks = 0
        for _ in range(10):
            await asyncio.sleep(0.01)
            ticks += 1
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ticks, await asyncio.wait_for(
            engine.generate([request((0, 0), [1, 2], max_tokens=2)]), timeout=5
        )

    ticks, answers = run(engine, work)
    assert ticks == 10
    assert len(answers[0].token_ids) == 2


def test_stopped_or_unstarted_engine_refuses() -> None:
    engine = engine_of(llama)
    with pytest.raises(InferenceError, match="not running"):
        asyncio.run(engine.generate([request((0, 0), [1])]))

    async def twice() -> None:
        await engine.start()
        await engine.stop()
        await engine.stop()
        await engine.start()
        assert len(await engine.generate([request((0, 0), [1])])) == 1
        await engine.stop()

    asyncio.run(twice())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int8"}, "engine.dtype must be one of"),
        ({"max_sessions": 0}, "engine.max_sessions must be >= 1, got 0"),
        ({"max_context_tokens": 0}, "engine.max_context_tokens must be >= 1"),
        ({"device": "nonsense"}, "engine.device='nonsense'"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_of(llama, **changes)


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    engine = engine_of(gpt2, max_context_tokens=129)
    with pytest.raises(ConfigError, match="max_position_embeddings of 128"):
        asyncio.run(engine.start())
