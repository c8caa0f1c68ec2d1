"""Requests and answers of vLLM's token endpoint: ids in, ids and log-probabilities out.

Nothing is left to a server's defaults, and nothing generated is ever turned into text and back:
the servers this project starts have no tokenizer at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.sampling import check

PATH = "/inference/v1/generate"

# Below it, vLLM samples at this temperature instead and says so only in its log.
_LOWEST_TEMPERATURE = 0.01
# What JSON servers put for log 0 and for NaN.
_UNUSABLE = -9999.0


def check_sampling(params: SamplingParams) -> None:
    """Refuse what vLLM would answer with something else.

    Raises:
        ConfigError: Names the key, the value and what is allowed.
    """
    check(params)
    if 0 < params.temperature < _LOWEST_TEMPERATURE:
        raise ConfigError(
            f"sampling.temperature must be 0 or at least {_LOWEST_TEMPERATURE} with vLLM, got "
            f"{params.temperature}"
        )


def to_body(request: GenerationRequest, *, limit: int) -> dict[str, Any]:
    """The JSON body of one call, but for the server's own name of its model.

    Args:
        request: The call.
        limit: Most tokens to generate.
    """
    sampling = request.sampling
    return {
        "token_ids": list(request.prompt_token_ids),
        "sampling_params": {
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": limit,
            "min_tokens": 0,
            "seed": sampling.seed % (1 << 63),
            "stop": [],
            "stop_token_ids": list(sampling.stop_token_ids),
            # The tokens above end a reply, whatever the model's own configuration says.
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
        },
    }


def to_completion(
    payload: Mapping[str, Any], request: GenerationRequest, *, limit: int
) -> Completion:
    """What a server answered, if it can be trusted to the token.

    Args:
        payload: The parsed JSON.
        request: The call.
        limit: Most tokens it allowed.

    Raises:
        InferenceError: Token ids are missing, arrays do not align, or the answer is no answer to
            this call. Nothing is ever cut, padded or tokenised again to make it fit.
    """
    where = f"(session {request.session})"
    choices = payload.get("choices") or []
    if len(choices) != 1:
        raise InferenceError(f"the server gave {len(choices)} answers, not 1 {where}")
    choice = choices[0]
    token_ids = choice.get("token_ids")
    if not token_ids:
        raise InferenceError(
            f"the server's answer has no token ids {where}; text is never tokenised again"
        )
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise InferenceError(f"generation ended with {reason!r} {where}")
    if len(token_ids) > limit:
        raise InferenceError(f"asked for at most {limit} tokens, got {len(token_ids)} {where}")
    if reason == "stop" and token_ids[-1] not in request.sampling.stop_token_ids:
        raise InferenceError(f"the answer ends at {token_ids[-1]}, which is no stop token {where}")
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=_logprobs(choice, token_ids, request.sampling, where),
        policy_versions=_versions(choice, len(token_ids), where),
        finish_reason=reason,
    )


def _logprobs(
    choice: Mapping[str, Any], token_ids: Sequence[int], sampling: SamplingParams, where: str
) -> tuple[float, ...]:
    content = (choice.get("logprobs") or {}).get("content") or []
    if [entry.get("token_id") for entry in content] != list(token_ids):
        raise InferenceError(
            f"{len(token_ids)} token ids and {len(content)} log-probabilities do not belong "
            f"together {where}"
        )
    if sampling.temperature == 0:
        # The distribution sampled from is a point mass; the server reports the model's.
        return (0.0,) * len(content)
    values = (entry.get("logprob") for entry in content)
    return tuple(_UNUSABLE if value is None else float(value) for value in values)


def _versions(choice: Mapping[str, Any], count: int, where: str) -> tuple[int, ...]:
    """The version that sampled each token; weights may have changed in the middle."""
    versions: list[int] = []
    for span in choice.get("weight_versions") or []:
        if span["start"] != len(versions):
            break
        try:
            version = int(span["version"])
        except ValueError as error:
            raise InferenceError(
                f"the server plays weights called {span['version']!r}, which this run did not "
                f"give it {where}"
            ) from error
        versions += [version] * (span["end"] - span["start"])
    if len(versions) != count:
        raise InferenceError(
            f"{count} token ids, but policy versions for {len(versions)} of them {where}"
        )
    return tuple(versions)
