"""Skill sentences: many wordings of each behaviour, some of them kept out of the warm start.

A wording is a template with alternatives in braces. The held-back templates measure whether the
policy follows the meaning of a sentence, since a reflection model writes its own words.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from arise.tasks.shellworld.behaviours import Behaviour

_SLOT = re.compile(r"\{([^}]*)\}")

_BANKS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "skills.yaml").read_text())


def _by_behaviour(name: str) -> Mapping[Behaviour, tuple[str, ...]]:
    return {Behaviour(key): tuple(templates) for key, templates in _BANKS[name].items()}


SEEN = _by_behaviour("seen")
"""Templates that the warm start draws from."""
HELD_BACK = _by_behaviour("held_back")
"""Templates that only the measurement uses."""
NEUTRAL: tuple[str, ...] = tuple(_BANKS["neutral"])
"""Templates of advice that changes nothing."""
_FRAMES: tuple[str, ...] = tuple(_BANKS["frames"])


def wordings(template: str) -> list[str]:
    """All sentences of a template."""
    parts = _SLOT.split(template)
    # re.split alternates plain text and slots.
    options = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*options)]


def draw(rng: random.Random, templates: tuple[str, ...]) -> str:
    """One wording: a template first, so that long templates do not crowd out short ones."""
    template = rng.choice(templates)
    return _SLOT.sub(lambda slot: rng.choice(slot.group(1).split("|")), template)


def framed(rng: random.Random, sentence: str) -> str:
    """The sentence, sometimes with words around it that mean nothing."""
    frame = rng.choice(_FRAMES)
    if frame.endswith(", {}"):
        sentence = sentence[0].lower() + sentence[1:]
    return frame.format(sentence)


def all_sentences() -> list[str]:
    """Every sentence that could be drawn, without frames."""
    banks = (*SEEN.values(), *HELD_BACK.values(), NEUTRAL)
    return [text for bank in banks for template in bank for text in wordings(template)]


def all_frames() -> tuple[str, ...]:
    """The words that may stand around a sentence."""
    return tuple(sorted(set(_FRAMES)))
