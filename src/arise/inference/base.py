"""The engine protocol: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from arise.errors import InferenceError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. Training needs the plain distribution: top-p 1, top-k off.

    Attributes:
        temperature: Softmax temperature; 0 is greedy.
        top_p: Nucleus mass; 1 is off.
        top_k: Number of candidates; 0 is off.
        max_tokens: Most tokens to generate in this call.
        stop_token_ids: Sampling one of these ends the call; the token is part of the answer.
        seed: Seed of this request alone; the engine has no generator state of its own.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One model call.

    Attributes:
        session: Identifies the trajectory; calls of one session extend each other, so an engine
            may keep its key-value cache and must keep it on one server. Sorts by (task, rollout).
        prompt_token_ids: int[P], the whole prompt, earlier turns included.
        sampling: How to sample.
    """

    session: tuple[int, int]
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one call generated.

    Attributes:
        token_ids: int[N], the end token included if one was sampled.
        logprobs: float[N], under the distribution sampled from.
        policy_versions: int[N].
        finish_reason: `"stop"` or `"length"`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    finish_reason: str

    def __post_init__(self) -> None:
        """Refuse arrays that do not align: a wrong alignment trains on invented numbers."""
        lengths = (len(self.token_ids), len(self.logprobs), len(self.policy_versions))
        if len(set(lengths)) != 1:
            raise InferenceError(
                "token ids, log-probabilities and versions differ in length: "
                f"{lengths[0]}, {lengths[1]}, {lengths[2]}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReport:
    """What the engine holds.

    Attributes:
        version: Policy version of the weights.
        fingerprints: Fingerprint of every tensor by name.
        derived: Fingerprint of every repacked copy that a kernel computes with beside the tensor
            itself, by that tensor's name; a copy that was not renewed is how an engine plays a
            stale output head.
    """

    version: int
    fingerprints: Mapping[str, tuple[int, int]]
    derived: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Engine(Protocol):
    """Plays the policy. All methods are called on the run's one event loop.

    Attributes:
        max_context_tokens: Prompt and answer together never exceed it.
        is_concurrent: Whether the engine batches by itself: each request is then sent on its own,
            as soon as it is there. Otherwise one call of `generate` at a time gets all of them.
    """

    max_context_tokens: int
    is_concurrent: bool = False

    @property
    def dtype(self) -> Any:
        """torch dtype that weights are held in; `None` keeps the trainer's."""

    async def start(self) -> None:
        """Bring the engine up."""

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        """Answer all requests; a request that fails gives its error in its place."""

    async def release(self, session: tuple[int, int]) -> None:
        """Forget a finished trajectory's cache."""

    async def load_weights(self, weights: Mapping[str, Any], *, version: int) -> WeightReport:
        """Take over the trainer's full tensors by name and report what arrived."""

    async def rest(self) -> None:
        """Leave memory to the trainer until the next `load_weights`, if both share a device."""

    def require_alive(self) -> None:
        """Raise `InferenceError` if requests will not be answered any more."""
        return

    @property
    def found(self) -> list[tuple[str, str]]:
        """Name and facts of each server that it uses, for people."""
        return []

    async def stop(self) -> None:
        """Shut down; safe to call more than once."""


def prompt_problem(prompt: Sequence[int], *, context: int, vocabulary: int) -> str:
    """Why a prompt cannot be answered; empty if it can.

    Args:
        prompt: int[P].
        context: Most tokens of prompt and answer together.
        vocabulary: Number of token ids that the model knows.
    """
    if not prompt:
        return "the prompt is empty"
    if len(prompt) >= context:
        return (
            f"the prompt has {len(prompt)} tokens and fills the context of {context} "
            "(engine.max_context_tokens)"
        )
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        return f"the prompt has token ids outside the model's vocabulary of {vocabulary}"
    return ""
