"""Requests and answers of vLLM's token endpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arise.errors import ConfigError, InferenceError
from arise.inference.base import GenerationRequest, SamplingParams
from arise.inference.vllm.wire import check_sampling, to_body, to_completion


def request(**sampling: Any) -> GenerationRequest:
    options = {"max_tokens": 6, "stop_token_ids": (1,), "seed": 7, **sampling}
    return GenerationRequest(
        session=(0, 3), prompt_token_ids=(5, 6, 7), sampling=SamplingParams(**options)
    )


def answer(
    token_ids: list[int] | None,
    logprobs: list[float | None],
    *,
    reason: str = "length",
    spans: tuple[tuple[str, int, int], ...] | None = None,
    logprob_ids: list[int] | None = None,
) -> dict[str, Any]:
    ids = logprob_ids if logprob_ids is not None else (token_ids or [9] * len(logprobs))
    whole = (("4", 0, len(token_ids or ())),) if spans is None else spans
    return {
        "choices": [
            {
                "index": 0,
                "finish_reason": reason,
                "token_ids": token_ids,
                "weight_versions": [
                    {"version": version, "start": start, "end": end}
                    for version, start, end in whole
                ],
                "logprobs": {
                    "content": [
                        {"token_id": token_id, "logprob": value}
                        for token_id, value in zip(ids, logprobs, strict=True)
                    ]
                },
            }
        ]
    }


def test_every_sampling_parameter_is_sent() -> None:
    body = to_body(request(temperature=0.7, seed=(1 << 63) + 5), limit=4)
    assert json.loads(json.dumps(body)) == {
        "token_ids": [5, 6, 7],
        "sampling_params": {
            "n": 1,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": 4,
            "min_tokens": 0,
            "seed": 5,
            "stop": [],
            "stop_token_ids": [1],
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
        },
    }


def test_an_answer_is_taken_as_it_is() -> None:
    made = to_completion(answer([8, 1], [-0.5, -0.25], reason="stop"), request(), limit=6)
    assert made.token_ids == (8, 1)
    assert made.logprobs == (-0.5, -0.25)
    assert made.policy_versions == (4, 4)
    assert made.finish_reason == "stop"


def test_W07_every_token_keeps_the_version_that_sampled_it() -> None:
    payload = answer([8, 9, 8], [-1.0, -2.0, -3.0], spans=(("4", 0, 1), ("5", 1, 3)))
    assert to_completion(payload, request(), limit=6).policy_versions == (4, 5, 5)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (answer(None, [-0.5]), "no token ids"),
        (answer([], []), "no token ids"),
        (answer([8, 9, 8, 9, 8], [-1.0] * 6, logprob_ids=[8, 9, 8, 9, 8, 9]), "5 token ids and 6"),
        (answer([8, 9], [-1.0], logprob_ids=[8]), "2 token ids and 1"),
        (answer([8, 9], [-1.0, -1.0], logprob_ids=[8, 7]), "do not belong together"),
        (answer([8], [-1.0], spans=()), "policy versions for 0"),
        (answer([8, 9], [-1.0, -1.0], spans=(("4", 1, 2),)), "policy versions for 0"),
        (answer([8], [-1.0], spans=(("default", 0, 1),)), "'default'"),
        (answer([8], [-1.0], reason="abort"), "'abort'"),
        (answer([8] * 7, [-1.0] * 7), "at most 6 tokens, got 7"),
        (answer([8], [-1.0], reason="stop"), "no stop token"),
        ({"choices": []}, "0 answers"),
        ({}, "0 answers"),
    ],
)
def test_T02_T14_an_answer_that_does_not_align_is_refused(
    payload: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferenceError, match=message):
        to_completion(payload, request(), limit=6)


def test_T15_a_missing_logprob_becomes_the_value_that_the_loss_masks() -> None:
    payload = answer([8, 9], [-9999.0, None])
    assert to_completion(payload, request(), limit=6).logprobs == (-9999.0, -9999.0)


def test_a_greedy_token_has_probability_one() -> None:
    made = to_completion(answer([8, 9], [-0.3, -0.4]), request(temperature=0.0), limit=6)
    assert made.logprobs == (0.0, 0.0)


def test_T07_temperatures_that_vllm_would_replace_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least 0\.01 with vLLM, got 0\.005"):
        check_sampling(SamplingParams(temperature=0.005))
    check_sampling(SamplingParams(temperature=0.0))
    check_sampling(SamplingParams(temperature=0.01))
    with pytest.raises(ConfigError, match="top_p"):
        check_sampling(SamplingParams(top_p=0.0))
