"""The in-process engine: a transformers model of its own, batched, with episode-long caches."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from arise.errors import ConfigError, InferenceError
from arise.inference.attention import SLOT_ATTENTION
from arise.inference.base import Completion, Engine, GenerationRequest, SamplingParams, WeightReport
from arise.inference.generation import (
    Draft,
    GenerationCancelled,
    Generator,
    PlainGenerator,
    SlotGenerator,
)
from arise.inference.sampling import check
from arise.inference.slot_cache import SlotCache, SlotTable
from arise.inference.weights import copy_weights, fingerprints

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MOVING_ROPE = ("dynamic", "longrope")


class TransformersEngine(Engine):
    """Plays the policy with a transformers model inside this process.

    Requests of one call are generated together; keys and values stay in one slot per session
    until it is released or the weights change, so a turn costs only its new tokens. Models that
    are not plain full attention are played one request at a time instead; the log says so.

    The same requests in the same order after the same earlier calls give bitwise equal answers.
    All computing happens in one worker thread, one call after the other, so the event loop stays
    free for sandboxes.

    Args:
        model: Builds the engine's own model; called once by `start`. It must not return the
            trainer's: the engine changes dtype, device and weights of what it gets.
        device: `"auto"` (CUDA if there is one), or a torch device such as `"cpu"` or `"cuda:1"`.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        max_context_tokens: Prompt and answer together never exceed it.
        max_sessions: Slots. With more sessions than slots, calls run in waves and the least
            recently used session is computed afresh when it comes back.

    Raises:
        ConfigError: A value is out of range (keys `engine.*`).
    """

    def __init__(
        self,
        *,
        model: Callable[[], PreTrainedModel],
        device: str,
        dtype: str,
        max_context_tokens: int,
        max_sessions: int,
    ) -> None:
        for key, value in (
            ("max_context_tokens", max_context_tokens),
            ("max_sessions", max_sessions),
        ):
            if value < 1:
                raise ConfigError(f"engine.{key} must be >= 1, got {value}")
        if dtype not in _DTYPES:
            raise ConfigError(f"engine.dtype must be one of {sorted(_DTYPES)}, got {dtype!r}")
        self.max_context_tokens = max_context_tokens
        self._build = model
        self._device = _device(device)
        self._dtype = _DTYPES[dtype]
        self._max_sessions = max_sessions
        self._version = -1
        self._executor: ThreadPoolExecutor | None = None
        self._model: PreTrainedModel | None = None
        self._generator: Generator | None = None
        self._table: SlotTable | None = None
        self._running: set[Event] = set()

    @property
    def version(self) -> int:
        """Policy version of the weights; -1 while they are as built, before any load."""
        return self._version

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are held in; fingerprints to compare with must be made in it."""
        return self._dtype

    @property
    def keeps_cache(self) -> bool:
        """Whether keys are kept between the calls of a session."""
        return self._table is not None

    async def start(self) -> None:
        """Build the model and choose how to generate; does nothing if already started.

        Raises:
            ConfigError: The model is no causal language model, or its context is too short.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="arise-engine")
            await self._in_worker(self._start)

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        """Answer all requests in their order; one that cannot be answered gives its error.

        Every token carries the version of the weights that sampled it. An answer ends with a
        sampled stop token (`"stop"`) or at its limit (`"length"`); nothing is ever appended.

        Raises:
            ConfigError: Sampling parameters are out of range.
        """
        for request in requests:
            check(request.sampling)
        cancelled = Event()
        self._running.add(cancelled)
        try:
            return await self._in_worker(lambda: self._generate(list(requests), cancelled))
        except asyncio.CancelledError:
            cancelled.set()
            raise
        finally:
            self._running.discard(cancelled)

    async def release(self, session: tuple[int, int]) -> None:
        """Forget a finished trajectory's cache."""
        if self._table is not None:
            table = self._table
            await self._in_worker(lambda: table.release(session))

    async def load_weights(self, weights: Mapping[str, Any], *, version: int) -> WeightReport:
        """Take over the trainer's tensors; every cached key becomes stale.

        Args:
            weights: Full tensors by name; wrapper prefixes and tied names are understood.
            version: Policy version that tokens carry from now on.

        Returns:
            Version and fingerprints computed from the engine's own tensors after the copy, under
            the canonical names that were given.

        Raises:
            WeightSyncError: Names or shapes do not cover the model exactly; nothing was changed.
        """
        return await self._in_worker(lambda: self._load(weights, version))

    async def stop(self) -> None:
        """End running generations, then drop model and caches; safe to repeat."""
        for cancelled in self._running:
            cancelled.set()
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=True)
        self._model = self._generator = self._table = None
        self._version = -1

    async def _in_worker(self, work: Callable[[], T]) -> T:
        if self._executor is None:
            raise InferenceError("the engine is not running: call start() first")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _start(self) -> None:
        model = self._build().to(device=self._device, dtype=self._dtype).eval()
        model.requires_grad_(False)
        _check_model(model, self.max_context_tokens)
        self._model = model
        reason = _why_not_slots(model)
        if reason is None:
            cache = SlotCache(max_slots=self._max_sessions, max_tokens=self.max_context_tokens)
            self._table = SlotTable(cache, max_sessions=self._max_sessions)
            self._generator = SlotGenerator(model, self._table, cache)
        else:
            logger.warning(
                "%s is played one request at a time, without a cache between turns: %s",
                type(model).__name__,
                reason,
            )
            self._generator = PlainGenerator(model)

    @torch.inference_mode()
    def _generate(
        self, requests: list[GenerationRequest], cancelled: Event
    ) -> list[Completion | InferenceError]:
        drafts = [self._draft(request) for request in requests]
        assert self._generator is not None
        for wave in _waves([d for d in drafts if d.error is None], self._max_sessions):
            try:
                self._generator.run(wave, cancelled)
            except GenerationCancelled:
                break
            except torch.OutOfMemoryError as error:
                for draft in wave:
                    draft.error = InferenceError(
                        f"out of memory with {len(wave)} sessions ({error}); lower "
                        "engine.max_sessions or engine.max_context_tokens"
                    )
        return [self._completion(draft) for draft in drafts]

    def _draft(self, request: GenerationRequest) -> Draft:
        prompt = list(request.prompt_token_ids)
        room = self.max_context_tokens - len(prompt)
        draft = Draft(
            session=request.session,
            prompt=prompt,
            sampling=request.sampling,
            limit=min(request.sampling.max_tokens, room),
        )
        assert self._model is not None
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        problem = ""
        if not prompt:
            problem = "the prompt is empty"
        elif room < 1:
            problem = (
                f"the prompt has {len(prompt)} tokens and fills the context of "
                f"{self.max_context_tokens} (engine.max_context_tokens)"
            )
        elif min(prompt) < 0 or max(prompt) >= vocabulary:
            problem = f"the prompt has token ids outside the model's vocabulary of {vocabulary}"
        if problem:
            draft.error = InferenceError(f"{problem} (session {request.session})")
        return draft

    def _completion(self, draft: Draft) -> Completion | InferenceError:
        if draft.error is not None:
            return draft.error
        if not draft.finish_reason:
            return InferenceError(f"generation was cancelled (session {draft.session})")
        return Completion(
            token_ids=tuple(draft.token_ids),
            logprobs=tuple(draft.logprobs),
            policy_versions=(self._version,) * len(draft.token_ids),
            finish_reason=draft.finish_reason,
        )

    def _load(self, weights: Mapping[str, Tensor], version: int) -> WeightReport:
        assert self._model is not None
        own = copy_weights(self._model, weights)
        if self._table is not None:
            self._table.invalidate()
        self._version = version
        return WeightReport(version=version, fingerprints=fingerprints(own))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"engine.device={name!r} cannot be used here: {str(error).splitlines()[0]}. "
            "Allowed: auto, cpu, or a device that torch sees"
        ) from error
    return device


def _check_model(model: PreTrainedModel, max_context_tokens: int) -> None:
    config = model.config.get_text_config()
    if getattr(model.config, "is_encoder_decoder", False) or not model.get_output_embeddings():
        raise ConfigError(
            f"engine.model must build a causal language model, got {type(model).__name__}"
        )
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and max_context_tokens > limit:
        raise ConfigError(
            f"engine.max_context_tokens={max_context_tokens} exceeds the model's "
            f"max_position_embeddings of {limit}"
        )


def _why_not_slots(model: PreTrainedModel) -> str | None:
    """Why the slot cache cannot play this model; `None` if it can, with its attention set up.

    The configuration rules out what a short probe cannot show; the probe rules out the rest, by
    comparing batched, cached, left-padded passes with single plain ones.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return f"its layers are {', '.join(sorted(kinds))}"
    if not kinds and getattr(config, "sliding_window", None):
        return "its attention has a sliding window"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPE:
        return f"its {rope['rope_type']} rotary embedding depends on the longest batch mate"
    _own_config(model)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(SLOT_ATTENTION)
        gap, tolerance = _probe(model)
        reason = f"cached passes differ from plain ones by {gap:.2g}" if gap > tolerance else None
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        reason = f"its forward pass does not take a slot cache ({type(error).__name__}: {error})"
    if reason is not None:
        model.set_attn_implementation(before)
    return reason


def _own_config(model: PreTrainedModel) -> None:
    """Give the model configuration objects that it shares with no other model."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        config = getattr(module, "config", None)
        if id(config) in copies:
            module.config = copies[id(config)]


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> tuple[float, float]:
    """Largest gap of cached to plain log-probabilities on fixed input, and what rounding allows.

    Two sessions of different lengths, two turns each, against one plain pass per row.
    """
    cache = SlotCache(max_slots=2, max_tokens=32)
    generator = SlotGenerator(model, SlotTable(cache, max_sessions=2), cache)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    prompts = [[(7 * i + 3) % vocabulary for i in range(9)], [(5 * i) % vocabulary for i in (1, 2)]]
    gap = scale = 0.0
    for _ in range(2):
        drafts = [
            Draft(session=(0, row), prompt=prompt, sampling=SamplingParams(seed=row), limit=3)
            for row, prompt in enumerate(prompts)
        ]
        generator.run(drafts, Event())
        for draft in drafts:
            ids = torch.tensor([draft.prompt + draft.token_ids], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, -4:-1].double()
            plain = logits.log_softmax(-1).gather(-1, ids[0, -3:, None])[:, 0].tolist()
            pairs = zip(draft.logprobs, plain, strict=True)
            gap = max(gap, *(abs(cached - expected) for cached, expected in pairs))
            scale = max(scale, logits.abs().max().item())
        prompts = [d.prompt + d.token_ids + [1, 0][: 1 + d.session[1]] for d in drafts]
    return gap, max(1e-4, 4 * torch.finfo(model.dtype).eps * scale)


def _waves(drafts: Sequence[Draft], size: int) -> Iterator[list[Draft]]:
    """Split into runs of at most `size` drafts without a repeated session, in order."""
    wave: list[Draft] = []
    for draft in drafts:
        if len(wave) == size or any(draft.session == other.session for other in wave):
            yield wave
            wave = []
        wave.append(draft)
    if wave:
        yield wave
