"""What every engine promises, held against full forward passes of the trainer's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from arise.errors import InferenceError, WeightSyncError
from arise.inference.base import Completion, Engine
from arise.inference.weights import fingerprints, verify
from arise.modules.lora import LoraOptions, add_adapters
from arise.modules.policy_lm import PolicyLM
from engines import (
    CONTEXT,
    policy,
    prompt_of,
    request,
    run_engine,
    scored,
    transformers_engine,
    vllm_engine,
)

TOLERANCE = 1e-4


@pytest.fixture(
    params=["transformers", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.slow])]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "transformers":
        return transformers_engine()
    return vllm_engine(request.getfixturevalue("vllm_url"))


async def push(engine: Engine, weights: Any, version: int) -> None:
    """As the trainer does it: give, then compare."""
    report = await engine.load_weights(weights, version=version)
    verify(fingerprints(weights, dtype=engine.dtype), report, version=version)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_T07_T16_several_turns_score_as_a_full_forward_does(
    engine: Engine, temperature: float
) -> None:
    model = policy()

    async def work() -> list[tuple[list[int], Completion]]:
        await push(engine, model.state_dict(), 0)
        prompts = {row: prompt_of(5 + 30 * row, row) for row in range(4)}
        calls = []
        for turn in range(3):
            answers = await engine.generate(
                [
                    request(row, prompt, temperature=temperature, seed=10 * turn + row)
                    for row, prompt in prompts.items()
                ]
            )
            for row, answer in enumerate(answers):
                calls.append((prompts[row], answer))
                prompts[row] = [*prompts[row], *answer.token_ids, *prompt_of(3, 50 + turn)]
        return calls

    for prompt, answer in run_engine(engine, work):
        expected = scored(model, prompt, answer.token_ids, temperature)
        assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
        assert answer.finish_reason == "length"
        assert len(answer.token_ids) == 8


def test_a_request_repeats_by_its_seed_whatever_runs_beside_it(engine: Engine) -> None:
    asked = [request(row, prompt_of(20, row), max_tokens=16) for row in range(6)]

    async def work() -> tuple[Any, Any]:
        await push(engine, policy().state_dict(), 0)
        together = await engine.generate(asked)
        for row in range(6):
            await engine.release((0, row))
        return together, [(await engine.generate([one]))[0] for one in reversed(asked)][::-1]

    together, alone = run_engine(engine, work)
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert len({a.token_ids for a in together}) == 6


def test_T11_a_stop_token_ends_a_reply_and_belongs_to_it(engine: Engine) -> None:
    """Nothing else ends it, the model's own end token neither; a limit appends nothing."""
    prompt = prompt_of(12, 1)

    async def work() -> tuple[Completion, Completion, Completion]:
        await push(engine, policy().state_dict(), 0)
        (free,) = await engine.generate([request(0, prompt, max_tokens=40)])
        third = free.token_ids[2]
        (stopped,) = await engine.generate(
            [request(0, prompt, max_tokens=40, stop_token_ids=(third, 3))]
        )
        (short,) = await engine.generate([request(0, prompt, max_tokens=2)])
        return free, stopped, short

    free, stopped, short = run_engine(engine, work)
    first = free.token_ids.index(free.token_ids[2])
    assert free.finish_reason == "length"
    assert len(free.token_ids) == 40
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert short.token_ids == free.token_ids[:2]
    assert short.finish_reason == "length"


def test_what_cannot_be_answered_fails_alone(engine: Engine) -> None:
    async def work() -> list[Any]:
        await push(engine, policy().state_dict(), 0)
        return await engine.generate(
            [
                request(0, []),
                request(1, [5, 999_999]),
                request(2, prompt_of(CONTEXT, 0)),
                request(3, prompt_of(CONTEXT - 3, 0)),
            ]
        )

    empty, unknown, full, cut = run_engine(engine, work)
    assert isinstance(empty, InferenceError)
    assert "empty" in str(empty)
    assert f"vocabulary of {policy().config.vocab_size}" in str(unknown)
    assert f"fills the context of {CONTEXT}" in str(full)
    assert isinstance(cut, Completion)
    assert len(cut.token_ids) == 3
    assert cut.finish_reason == "length"


def test_a_greedy_reply_takes_the_largest_logit(engine: Engine) -> None:
    model, prompt = policy(), prompt_of(9, 2)

    async def work() -> list[Completion]:
        await push(engine, model.state_dict(), 0)
        return await engine.generate([request(0, prompt, temperature=0.0, max_tokens=5)])

    (answer,) = run_engine(engine, work)
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(5):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert list(answer.token_ids) == ids[len(prompt) :]
    assert answer.logprobs == (0.0,) * 5


def test_W02_W07_new_weights_are_played_without_old_keys(engine: Engine) -> None:
    old, new = policy(), policy()
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    prompt = prompt_of(40, 4)

    async def work() -> list[Completion]:
        answers = []
        for version, model in ((4, old), (5, new)):
            await push(engine, model.state_dict(), version)
            longer = [*prompt, *(answers[0].token_ids if answers else ())]
            answers += await engine.generate([request(0, longer)])
        return answers

    before, after = run_engine(engine, work)
    assert before.policy_versions == (4,) * 8
    assert after.policy_versions == (5,) * 8
    longer = [*prompt, *before.token_ids]
    assert after.logprobs == pytest.approx(scored(new, longer, after.token_ids), abs=TOLERANCE)
    assert after.logprobs != pytest.approx(scored(old, longer, after.token_ids), abs=0.01)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.pop("model.norm.weight"),
        lambda weights: weights.update({"model.layers.9.mlp.up_proj.weight": torch.zeros(2, 2)}),
    ],
    ids=["missing", "unknown"],
)
def test_W04_weights_that_do_not_fit_one_for_one_are_refused(
    engine: Engine, change: Callable[[dict[str, Any]], Any]
) -> None:
    weights = dict(policy().state_dict())
    change(weights)
    with pytest.raises(WeightSyncError):
        run_engine(engine, lambda: engine.load_weights(weights, version=1))


def test_log_probabilities_follow_an_adapter(engine: Engine) -> None:
    """LoRA: the engine gets merged weights, the trainer scores with the adapter in place."""
    plain, adapted = policy(), policy()
    add_adapters(adapted, LoraOptions(rank=4, alpha=8, target_modules="all-linear", seed=0))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter += 0.3 * torch.randn_like(parameter)
    trainer = PolicyLM(
        adapted,
        temperature=1.0,
        chunk_tokens=64,
        layout="rows",
        activation_checkpointing=False,
    )
    prompts = [prompt_of(15, seed) for seed in range(4)]

    async def work() -> list[Completion]:
        await push(engine, trainer.full_weights(), 1)
        return await engine.generate([request(row, prompt) for row, prompt in enumerate(prompts)])

    changes = []
    for prompt, answer in zip(prompts, run_engine(engine, work), strict=True):
        expected = scored(adapted, prompt, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
        before = scored(plain, prompt, answer.token_ids)
        changes += [abs(a - b) for a, b in zip(expected, before, strict=True)]
    assert max(changes) > 0.1


def test_stopping_twice_and_asking_a_stopped_engine(engine: Engine) -> None:
    async def work() -> Any:
        await engine.stop()
        await engine.stop()
        try:
            return (await engine.generate([request(0, [5])]))[0]
        except InferenceError as error:
            return error

    error = run_engine(engine, work)
    assert isinstance(error, InferenceError)
    assert "not running" in str(error)
