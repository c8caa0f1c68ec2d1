"""What a family is, and the sentences that all families share."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from arise.tasks.shellworld.spec import Draft, Need, Plan
from arise.tasks.shellworld.words import DOCUMENTS, NamePool

READ, HEED, VERIFY, FINISH = Need.READ, Need.HEED, Need.VERIFY, Need.FINISH
Needs = frozenset[Need]

NO_RULE = ("nothing special", "no special rule", "keep it plain", "no extra step")
DOCUMENT_HINTS = ("Notes: {doc}.", "See {doc}.", "House rules: {doc}.", "{doc} has notes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A generator of similar tasks.

    Attributes:
        name: Unique name.
        domain: Reporting group.
        tags: Task types.
        make: Draws one task that has exactly the given needs.
        mixed: Sets of needs it offers in the default mix, where hidden needs come in conjunctions.
        single: Sets of at most one need that it offers in the single mix.
        unseen: Whether it is kept out of training and of the warm start.
    """

    name: str
    domain: str
    tags: tuple[str, ...]
    make: Callable[[random.Random, Needs], Draft]
    mixed: tuple[Needs, ...]
    single: tuple[Needs, ...]
    unseen: bool = False


def need_sets(text: str) -> tuple[Needs, ...]:
    """Sets of needs from their initials: `"- RH RHV"` is no need, read + heed, and all three."""
    letters = {"R": READ, "H": HEED, "V": VERIFY, "F": FINISH}
    return tuple(frozenset(letters[c] for c in word if c != "-") for word in text.split())


class Builder:
    """Collects one task's parts while a family draws them.

    Args:
        rng: Generator of this task alone.
        needs: What the task must need.
    """

    def __init__(self, rng: random.Random, needs: Needs) -> None:
        self.rng = rng
        self.needs = needs
        self.names = NamePool(rng)
        self.document = rng.choice(DOCUMENTS)
        self.files: dict[str, str] = {}
        self.expected: dict[str, str] = {}
        self.gone: tuple[str, ...] = ()
        self._closing = ""
        self._request = ""

    def lines(self, count: int) -> list[str]:
        """`count` different names, one for each line of a data file."""
        return self.names.many(count)

    def rule(self, sentences: Sequence[str], word: str) -> str:
        """Write the document: a rule that names `word` if reading is needed, else none.

        Returns:
            The word if it is a rule of this task, else the empty string.
        """
        needed = READ in self.needs
        sentence = self.rng.choice(tuple(sentences) if needed else NO_RULE)
        self.files[self.document] = sentence.format(word=word) + "\n"
        return word if needed else ""

    def closing(self) -> None:
        """Ask for a last step, if this task needs one."""
        if FINISH not in self.needs:
            return
        name, word = self.names.take(), self.names.take()
        if self.rng.random() < 0.5:
            self._closing = f"echo {word} > {name}.log"
            self._request = self.rng.choice(
                (f"Then write {word} to {name}.log.", f"At the end put {word} into {name}.log.")
            )
            self.expected[f"{name}.log"] = f"{word}\n"
        else:
            self._closing = f"rm {name}.tmp"
            self._request = self.rng.choice(
                (f"Then remove {name}.tmp.", f"At the end delete {name}.tmp.")
            )
            self.files[f"{name}.tmp"] = f"{word}\n"
            self.gone = (*self.gone, f"{name}.tmp")

    def draft(self, request: str, plan: Callable[..., Plan], **parts: object) -> Draft:
        """The finished task; `parts` go to the plan."""
        hint = self.rng.choice(DOCUMENT_HINTS).format(doc=self.document)
        sentences = (request, hint, self._request)
        return Draft(
            instruction=" ".join(sentence for sentence in sentences if sentence),
            files=dict(sorted(self.files.items())),
            expected=dict(sorted(self.expected.items())),
            gone=self.gone,
            plan=plan(document=self.document, closing=self._closing, **parts),
        )


def text(lines: Sequence[str]) -> str:
    """A file's content from its lines."""
    return "".join(f"{line}\n" for line in lines)


def phrase(rng: random.Random, options: Sequence[str], values: Mapping[str, str]) -> str:
    """One of several wordings, filled in."""
    return rng.choice(tuple(options)).format(**values)
