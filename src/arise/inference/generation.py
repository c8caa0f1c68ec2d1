"""Token-by-token generation: batched over cache slots, or one request at a time.

Shapes: B rows, Q new tokens of a row, K keys, V vocabulary.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from arise.errors import InferenceError
from arise.inference.base import SamplingParams
from arise.inference.sampling import Sampler
from arise.inference.slot_cache import Session, SessionKey, SlotCache, SlotTable

_PREFILL_TOKENS = 8192
_PREFILL_SCORES = 1 << 26


class GenerationCancelled(Exception):
    """The caller no longer waits; what was generated is dropped."""


@dataclass(slots=True, eq=False)
class Draft:
    """A request under way.

    Attributes:
        session: Its episode.
        prompt: int[P].
        sampling: How to sample.
        limit: Most tokens it may still get, context included.
        token_ids: int[N], sampled so far.
        logprobs: float[N], under the distribution sampled from.
        finish_reason: `"stop"` or `"length"` once done.
        error: Why it failed, if it did.
    """

    session: SessionKey
    prompt: list[int]
    sampling: SamplingParams
    limit: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    error: InferenceError | None = None

    def take(self, token: int, logprob: float) -> bool:
        """Add a sampled token; return whether the request goes on."""
        if not math.isfinite(logprob):
            self.error = InferenceError(
                f"the model's logits are not finite after {len(self.prompt)} prompt and "
                f"{len(self.token_ids)} generated tokens (session {self.session})"
            )
            return False
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.limit:
            self.finish_reason = "length"
        return not self.finish_reason


class Generator(Protocol):
    """Completes drafts in place."""

    def run(self, drafts: Sequence[Draft], cancelled: Event) -> None:
        """Complete the drafts, all of different sessions.

        Raises:
            GenerationCancelled: `cancelled` was set.
        """


def _last_logits_only(model: PreTrainedModel) -> dict[str, Any]:
    known = inspect.signature(model.forward).parameters
    return {"logits_to_keep": 1} if "logits_to_keep" in known else {}


def _sample(sampler: Sampler, logits: Tensor) -> list[tuple[int, float]]:
    tokens, logprobs = sampler.sample(logits)
    # One transfer for both: float64 holds every token id exactly.
    pairs = torch.stack((tokens.double(), logprobs), dim=1).tolist()
    return [(int(token), logprob) for token, logprob in pairs]


class SlotGenerator:
    """All requests at once, each session's keys kept in its slot from call to call.

    A row's positions, mask and keys depend on its own length only, so log-probabilities do not
    depend on batch mates beyond float noise.

    Args:
        model: Causal language model whose layers are all plain full attention.
        table: Where sessions lie.
        cache: The table's storage.
    """

    def __init__(self, model: PreTrainedModel, table: SlotTable, cache: SlotCache) -> None:
        self._model = model
        self._table = table
        self._cache = cache
        self._device = model.device
        self._dtype = model.dtype
        self._kwargs = _last_logits_only(model)

    def run(self, drafts: Sequence[Draft], cancelled: Event) -> None:
        """Complete the drafts: one prefill of what is new, then steps over all live rows."""
        sessions = self._table.place([d.session for d in drafts])
        try:
            logits = self._prefill(drafts, sessions, cancelled)
            self._decode(list(drafts), sessions, logits, cancelled)
        except BaseException:
            for session in sessions:
                session.token_ids = []
            raise
        for draft in drafts:
            if draft.error:
                self._table.release(draft.session, wipe=True)

    def _decode(
        self, drafts: list[Draft], sessions: list[Session], logits: Tensor, cancelled: Event
    ) -> None:
        sampler = Sampler([d.sampling for d in drafts], self._device)
        lengths = self._tensor([len(d.prompt) for d in drafts])
        longest = max(len(d.prompt) for d in drafts)
        rows = torch.arange(len(drafts), device=self._device)
        while True:
            if cancelled.is_set():
                raise GenerationCancelled
            sampled = _sample(sampler, logits)
            live = [row for row, draft in enumerate(drafts) if draft.take(*sampled[row])]
            if not live:
                return
            if len(live) < len(drafts):
                order = self._table.compact(live)
                drafts = [drafts[row] for row in order]
                sessions = [sessions[row] for row in order]
                sampler.select(order)
                lengths = lengths[self._tensor(order)]
                rows = rows[: len(order)]
                longest = int(lengths.max())
            tokens = [draft.token_ids[-1] for draft in drafts]
            logits = self._step(self._tensor(tokens), rows, lengths, longest + 1)
            for session, token in zip(sessions, tokens, strict=True):
                session.token_ids.append(token)
            lengths = lengths + 1
            longest += 1

    def _step(self, tokens: Tensor, rows: Tensor, positions: Tensor, num_keys: int) -> Tensor:
        """Feed one token per row; float[B, V] logits of the next."""
        num_keys = self._cache.plan(
            rows=len(rows), num_keys=num_keys, new_row=rows, new_position=positions
        )
        return self._forward(tokens[:, None], positions[:, None], num_keys)

    def _prefill(
        self, drafts: Sequence[Draft], sessions: Sequence[Session], cancelled: Event
    ) -> Tensor:
        """Compute what the slots lack of the prompts; float[B, V] logits after each prompt."""
        starts = [s.resume(d.prompt) for d, s in zip(drafts, sessions, strict=True)]
        counts = [len(d.prompt) - start for d, start in zip(drafts, starts, strict=True)]
        longest = max(len(d.prompt) for d in drafts)
        budget = max(256, min(_PREFILL_TOKENS, _PREFILL_SCORES // longest))
        logits: list[Tensor] = [torch.empty(0)] * len(drafts)
        for group in _groups(counts, budget):
            for offset in range(0, max(counts[row] for row in group), budget):
                if cancelled.is_set():
                    raise GenerationCancelled
                spans = []
                for row in group:
                    begin = starts[row] + offset
                    end = min(len(drafts[row].prompt), begin + budget)
                    spans.append((row, begin, drafts[row].prompt[begin:end]))
                part = self._extend(spans)
            for row, row_logits in zip(group, part, strict=True):
                logits[row] = row_logits
        for draft, session in zip(drafts, sessions, strict=True):
            session.token_ids = list(draft.prompt)
        return torch.stack(logits)

    def _extend(self, spans: Sequence[tuple[int, int, list[int]]]) -> Tensor:
        """Feed several tokens per row; spans are (slot, first position, token ids).

        Shorter rows are padded on the left with queries that look at the first key and whose own
        keys are never written, so every row's logits are those of the last column.
        """
        width = max(len(tokens) for _, _, tokens in spans)
        ids = [[0] * (width - len(tokens)) + tokens for _, _, tokens in spans]
        places = [
            [0] * (width - len(tokens)) + list(range(begin, begin + len(tokens)))
            for _, begin, tokens in spans
        ]
        slots = [slot for slot, _, _ in spans]
        positions = self._tensor(places)
        padding = self._tensor([width - len(tokens) for _, _, tokens in spans])
        is_new = torch.arange(width, device=self._device) >= padding[:, None]
        is_padded = any(len(tokens) < width for _, _, tokens in spans)
        num_keys = self._cache.plan(
            rows=len(slots) if slots == list(range(len(slots))) else slots,
            num_keys=max(begin + len(tokens) for _, begin, tokens in spans),
            new_row=self._tensor(slots)[:, None].expand_as(positions)[is_new],
            new_position=positions[is_new],
            source=is_new.view(-1).nonzero()[:, 0] if is_padded else None,
        )
        return self._forward(self._tensor(ids), positions, num_keys)

    def _forward(self, ids: Tensor, positions: Tensor, num_keys: int) -> Tensor:
        """float[B, V]: logits of the last column of `ids` int64[B, Q] at `positions`."""
        keys = torch.arange(num_keys, device=self._device)
        mask = torch.zeros(*positions.shape, num_keys, dtype=self._dtype, device=self._device)
        mask.masked_fill_(keys > positions[..., None], float("-inf"))
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask[:, None],
            past_key_values=self._cache,
            use_cache=True,
            **self._kwargs,
        )
        return output.logits[:, -1]

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


def _groups(counts: Sequence[int], budget: int) -> list[list[int]]:
    """Split rows into forward passes of similar lengths and bounded padded size.

    A row longer than the budget comes alone, to be fed in pieces. Padding within a pass is at most
    about half, unless the rows are short.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(counts)), key=lambda row: counts[row]):
        group = groups[-1] if groups else []
        fits = (len(group) + 1) * counts[row] <= budget
        if group and fits and counts[row] <= 2 * counts[group[0]] + 64:
            group.append(row)
        else:
            groups.append([row])
    return [sorted(group) for group in groups]


class PlainGenerator:
    """One request at a time through the model's own cache, which starts empty at every call.

    Exact for any causal language model: sliding windows, linear attention, whatever its cache.

    Args:
        model: Causal language model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        self._kwargs = _last_logits_only(model)

    def run(self, drafts: Sequence[Draft], cancelled: Event) -> None:
        """Complete the drafts one after the other."""
        for draft in drafts:
            sampler = Sampler([draft.sampling], self._device)
            logits, cache = self._feed(draft.prompt, None)
            while draft.take(*_sample(sampler, logits)[0]):
                if cancelled.is_set():
                    raise GenerationCancelled
                if cache is None:
                    logits, cache = self._feed(draft.prompt + draft.token_ids, None)
                else:
                    logits, cache = self._feed(draft.token_ids[-1:], cache)

    def _feed(self, token_ids: list[int], cache: Any) -> tuple[Tensor, Any]:
        output = self._model(
            input_ids=torch.tensor([token_ids], dtype=torch.long, device=self._device),
            past_key_values=cache,
            use_cache=True,
            **self._kwargs,
        )
        return output.logits[:, -1], output.get("past_key_values")
