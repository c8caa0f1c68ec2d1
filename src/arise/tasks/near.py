"""Near-duplicates between corpora, so that a training corpus stays clean of the benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arise.types import Task

_WORD = re.compile(r"\w+")
_SHINGLE_WORDS = 5
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicate:
    """A task of one corpus that is much like one of another.

    Attributes:
        task_id: The task.
        other_id: What it is like.
        similarity: Share of the smaller text's shingles that the other one has too, in [0, 1].
        part: Where: `instruction` or `tests`.
    """

    task_id: str
    other_id: str
    similarity: float
    part: str


def near_duplicates(
    tasks: Iterable[Task], others: Sequence[Task], *, threshold: float
) -> Iterator[NearDuplicate]:
    """Pairs whose instructions or tests overlap by `threshold` or more.

    Texts are compared as sets of runs of five words, folded in case and without punctuation, by
    |A ∩ B| / min(|A|, |B|): a text that is part of another one counts as well.

    Args:
        tasks: The corpus to look through, such as training tasks.
        others: What it must not contain, such as a benchmark.
        threshold: In (0, 1].

    Yields:
        One entry per pair and part, in the order of `tasks`, then of `others`.
    """
    known = [(other, {part: shingles(text) for part, text in _parts(other)}) for other in others]
    for task in tasks:
        own = {part: shingles(text) for part, text in _parts(task)}
        for other, theirs in known:
            for part, mine in own.items():
                similarity = overlap(mine, theirs[part])
                if similarity >= threshold:
                    yield NearDuplicate(
                        task_id=task.id, other_id=other.id, similarity=similarity, part=part
                    )


def shingles(text: str) -> frozenset[int]:
    """Hashes of all runs of five words; of the whole text if it is shorter.

    Example:
        >>> shingles("Sort the FILE!") == shingles("sort the file")
        True
    """
    words = _WORD.findall(text.casefold())
    runs = range(max(1, len(words) - _SHINGLE_WORDS + 1)) if words else range(0)
    return frozenset(hash(tuple(words[start : start + _SHINGLE_WORDS])) for start in runs)


def overlap(first: frozenset[int], second: frozenset[int]) -> float:
    """Share of the smaller set that lies in the other one; 0 if one is empty."""
    smaller = min(len(first), len(second))
    return len(first & second) / smaller if smaller else 0.0


def _parts(task: Task) -> Iterator[tuple[str, str]]:
    yield "instruction", task.instruction
    folders = [tests for step in task.steps for tests in step.tests] or [
        *task.extra_tests,
        task.tests,
    ]
    own = [folder for folder in folders if folder.is_relative_to(task.path)]
    yield "tests", "\n".join(_texts(own))


def _texts(sources: Iterable[Path]) -> Iterator[str]:
    for source in sources:
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        for file in files:
            if file.is_file() and file.stat().st_size <= _MAX_FILE_BYTES:
                yield file.read_text(encoding="utf-8", errors="ignore")
