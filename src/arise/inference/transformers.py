"""The in-process engine: a transformers model of its own, batched, with episode-long caches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from arise.errors import ConfigError, InferenceError
from arise.inference.base import (
    Completion,
    Engine,
    GenerationRequest,
    WeightReport,
    prompt_problem,
)
from arise.inference.generation import (
    Draft,
    GenerationCancelled,
    Generator,
    PlainGenerator,
    SlotGenerator,
)
from arise.inference.sampling import check
from arise.inference.slot_cache import SlotCache, SlotTable
from arise.inference.slot_support import check_model, vocabulary_size, why_not_slots
from arise.inference.weights import copy_weights, fingerprints

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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

    is_concurrent = False

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

    async def rest(self) -> None:
        """Nothing is left: the next load overwrites the weights in place."""

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
        model = _placed(self._build(), self._device, self._dtype)
        check_model(model, self.max_context_tokens)
        self._model = model
        reason = why_not_slots(model)
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

    def _generate(
        self, requests: list[GenerationRequest], cancelled: Event
    ) -> list[Completion | InferenceError]:
        drafts = [self._draft(request) for request in requests]
        assert self._generator is not None
        for wave in _waves([d for d in drafts if d.error is None], self._max_sessions):
            try:
                with torch.inference_mode():
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
        problem = prompt_problem(
            prompt, context=self.max_context_tokens, vocabulary=vocabulary_size(self._model)
        )
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


def _placed(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Move and cast a model for inference, all but what is derived and never saved.

    A rotary embedding's frequencies are such a buffer: in bfloat16 they would turn far positions
    by wrong angles, and the trainer keeps them in float32.
    """
    nn.Module.to(model, device=device)
    saved = model.state_dict(keep_vars=True)
    for tensor in saved.values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model.eval().requires_grad_(False)


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
