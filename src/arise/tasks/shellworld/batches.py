"""Token batches of the warm start: transcripts of similar length, and copying exercises."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arise.tasks.shellworld.words import NAMES

COPY_TOKENS = 48
"""Length of a copying exercise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One token sequence.

    Attributes:
        ids: int[T].
        weights: float[T], loss weight of predicting each token.
    """

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Right-padded sequences; padding has weight 0.

    Attributes:
        input_ids: int64[B, T].
        weights: float32[B, T].
    """

    input_ids: torch.Tensor
    weights: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens with a weight."""
        return int((self.weights > 0).sum())


def collate(samples: Sequence[Sample], pad: int) -> Batch:
    """Pad `samples` on the right; causal attention needs no mask then."""
    length = max(len(sample.ids) for sample in samples)
    ids = torch.full((len(samples), length), pad, dtype=torch.int64)
    weights = torch.zeros((len(samples), length))
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        weights[row, : len(sample.ids)] = torch.tensor(sample.weights)
    return Batch(input_ids=ids, weights=weights)


def by_length(samples: list[Sample], tokens: int, pad: int, rng: random.Random) -> Iterator[Batch]:
    """Batches of about `tokens` tokens, in random order, of samples that are about equally long."""
    order = sorted(samples, key=lambda sample: (len(sample.ids), rng.random()))
    groups: list[list[Sample]] = []
    for sample in order:
        if not groups or (len(groups[-1]) + 1) * len(sample.ids) > tokens:
            groups.append([])
        groups[-1].append(sample)
    rng.shuffle(groups)
    for group in groups:
        yield collate(group, pad)


def copy_samples(tokenizer: Any, count: int, rng: random.Random) -> list[Sample]:
    """Copying exercises: a short list of names, again and again.

    A few updates on them settle the heads that `seed_copying` sets before other losses pull.
    """
    names = [tokenizer.convert_tokens_to_ids(name) for name in NAMES]
    digits = [tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)]
    start, end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|tool|>", "<|end|>"))
    reply = tokenizer.convert_tokens_to_ids("<|assistant|>")
    samples = []
    for _ in range(count):
        words = rng.sample(names, rng.choice((2, 3, 4, 6, 9, 14)))
        words += rng.sample(digits, k=rng.randint(0, 2))
        rng.shuffle(words)
        ids = [start, *words, end]
        weights = [0.0] * len(ids)
        while len(ids) + len(words) + 2 <= COPY_TOKENS:
            # Where the copy begins cannot be known; every later word of it can.
            again = words[rng.randint(0, 2) :]
            ids += [reply, *again, end]
            weights += [0.0, 0.0, *[1.0] * len(again)]
        samples.append(Sample(ids=ids, weights=weights))
    return samples
