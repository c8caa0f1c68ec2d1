"""The scripted engine, and what a completion may not be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.inference.weights import fingerprints, verify


def encode(text: str) -> list[int]:
    return list(text.encode())


def engine_of(script: Any, **changes: Any) -> ScriptedEngine:
    arguments = {"encode": encode, "end_token_id": 0, "max_context_tokens": 64, **changes}
    return ScriptedEngine(script=script, **arguments)


def ask(
    engine: ScriptedEngine,
    *sessions: tuple[int, int],
    prompt: Sequence[int] = (1,),
    limit: int = 32,
) -> list[Completion | InferenceError]:
    requests = [
        GenerationRequest(
            session=session,
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=limit),
        )
        for session in sessions
    ]
    return asyncio.run(engine.generate(requests))


def test_texts_come_in_turn_and_sessions_do_not_mix() -> None:
    engine = engine_of({(0, 0): ["ls", "id"], (0, 1): ["pwd"]})
    first = ask(engine, (0, 0), (0, 1))
    (second,) = ask(engine, (0, 0))
    assert [a.token_ids for a in (*first, second)] == [  # type: ignore[union-attr]
        (108, 115, 0),
        (112, 119, 100, 0),
        (105, 100, 0),
    ]
    assert second.logprobs == (-1.0,) * 3  # type: ignore[union-attr]
    assert second.finish_reason == "stop"  # type: ignore[union-attr]
    assert [r.session for r in engine.requests] == [(0, 0), (0, 1), (0, 0)]


def test_a_function_can_write_the_script_and_release_restarts_it() -> None:
    engine = engine_of(lambda session: [f"t{session[0]}", f"r{session[1]}"])
    assert ask(engine, (3, 4))[0].token_ids == (*encode("t3"), 0)  # type: ignore[union-attr]
    assert ask(engine, (3, 4))[0].token_ids == (*encode("r4"), 0)  # type: ignore[union-attr]
    asyncio.run(engine.release((3, 4)))
    assert ask(engine, (3, 4))[0].token_ids == (*encode("t3"), 0)  # type: ignore[union-attr]


def test_T11_a_text_that_is_cut_gets_no_end_token() -> None:
    engine = engine_of({(0, 0): ["abcd"], (0, 1): ["abcd"]}, max_context_tokens=10)
    (by_limit,) = ask(engine, (0, 0), limit=4)
    assert by_limit.token_ids == tuple(encode("abcd"))  # type: ignore[union-attr]
    assert by_limit.finish_reason == "length"  # type: ignore[union-attr]
    (by_context,) = ask(engine, (0, 1), prompt=range(8))
    assert by_context.token_ids == tuple(encode("ab"))  # type: ignore[union-attr]


def test_failures_hit_their_turn_only_and_the_others_go_on() -> None:
    script = {(0, j): ["a", "b"] for j in range(3)}
    engine = engine_of(script, failures=[((0, 1), 1)])
    assert all(isinstance(a, Completion) for a in ask(engine, *script))
    second = ask(engine, *script)
    assert [isinstance(a, InferenceError) for a in second] == [False, True, False]
    assert "session (0, 1) at turn 1" in str(second[1])


def test_ended_scripts_and_full_contexts_are_errors() -> None:
    engine = engine_of({(0, 0): ["a"]}, max_context_tokens=8)
    assert "fills the context of 8" in str(ask(engine, (0, 0), prompt=range(8))[0])
    ask(engine, (0, 0))
    assert "ends after 1 turns" in str(ask(engine, (0, 0))[0])
    assert "ends after 0 turns" in str(ask(engine, (9, 9))[0])


def test_W05_tokens_carry_the_loaded_version() -> None:
    engine = engine_of({(0, 0): ["a", "b"]})
    assert ask(engine, (0, 0))[0].policy_versions == (-1, -1)  # type: ignore[union-attr]
    weights = {"w": torch.ones(3)}
    report = asyncio.run(engine.load_weights(weights, version=3))
    verify(fingerprints(weights), report, version=3)
    assert ask(engine, (0, 0))[0].policy_versions == (3, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ids", "logprobs", "versions"), [(5, 6, 5), (6, 5, 6), (4, 5, 4), (0, 5, 0), (5, 5, 4)]
)
def test_T02_T14_arrays_that_do_not_align_are_refused(
    ids: int, logprobs: int, versions: int
) -> None:
    with pytest.raises(InferenceError, match=f"{ids}, {logprobs}, {versions}"):
        Completion(
            token_ids=(1,) * ids,
            logprobs=(-0.5,) * logprobs,
            policy_versions=(0,) * versions,
            finish_reason="stop",
        )


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.logprob must be <= 0, got 0\.5"):
        engine_of({}, logprob=0.5)
    with pytest.raises(ConfigError, match=r"engine\.max_context_tokens"):
        engine_of({}, max_context_tokens=0)
