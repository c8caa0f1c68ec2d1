"""Renames a task's script and the words of its messages, for the warm start.

A policy that has only ever seen six scripts learns them by heart and fails on a seventh. In some
demonstrations the script has another name, and what its messages ask for is called differently,
so that both must be copied.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from arise.tasks.shellworld.families.tools import SCRIPTS
from arise.tasks.shellworld.spec import TaskSpec
from arise.tasks.shellworld.words import NAMES, VERBS

_WORD = re.compile(r"[a-z]+")


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with words replaced in every text below it."""
    if isinstance(value, str):
        return _WORD.sub(lambda word: names.get(word.group(), word.group()), value)
    if isinstance(value, tuple):
        return tuple(_renamed(part, names) for part in value)
    if isinstance(value, Mapping):
        return {_renamed(key, names): _renamed(part, names) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: _renamed(getattr(value, part.name), names) for part in fields(value)}
        return replace(value, **parts)
    return value


def disguise(spec: TaskSpec, rng: random.Random) -> TaskSpec:
    """The same task with another script and other labels; other tasks are returned as they are."""
    script = next((s for s in SCRIPTS.values() if f"{s.name}.sh" in spec.draft.files), None)
    if script is None:
        return spec
    used = set(_WORD.findall(repr(spec.draft)))
    free = [name for name in NAMES if name not in used]
    verbs = [word for word in VERBS if word not in used]
    name = rng.choice(verbs if rng.random() < 0.5 else free)
    labels = rng.sample([word for word in free if word != name], len(script.labels))
    names = dict(zip((script.name, *script.labels), (name, *labels), strict=True))
    return replace(spec, draft=_renamed(spec.draft, names))
