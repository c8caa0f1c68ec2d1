"""Pools in files: a run's events, or a list written by hand; read alike, written for either use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from arise.errors import ConfigError
from arise.llm.text import clean_text
from arise.rubrics.events import Event, EventType, lifetime_pairs, new_event, read_events, replay
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.pool_file import pool_file
from arise.rubrics.proposals import fold

_AT_STEP = re.compile(r"(.+)@(\d+)")
_HEAD = """\
# A pool of rubric-skill pairs, to be read and edited by people.
# python -m arise.rubrics import THIS.yaml --out pool.jsonl   makes what rubrics.pool_path takes.
# capability: understanding, execution, verification, debugging or efficiency; id may be left out.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSource:
    """A pool as a file tells it.

    Attributes:
        name: What was asked for, for messages.
        events: Every event up to the step; for a list written by hand, one import per pair.
        pairs: The pairs, in id order.
    """

    name: str
    events: tuple[Event, ...]
    pairs: tuple[RubricSkillPair, ...]


def read_pool(name: str, *, lifetime: bool = False) -> PoolSource:
    """Read a pool.

    Args:
        name: A `pool.jsonl`, a run's folder, `package:file`, or a YAML list; with `@20` behind it
            the pool after step 20.
        lifetime: Every pair that was ever in the pool, hidden, with its last text, in place of the
            pairs that are in it.

    Raises:
        ConfigError: There is no such file, or it is no pool.
    """
    path, step = _find(name)
    if path.suffix in (".yaml", ".yml"):
        if step is not None:
            raise ConfigError(f"{name}: a list of pairs has no steps; leave out @{step}")
        pairs = _read_list(path)
        events = [_imported(pair) for pair in pairs]
        return PoolSource(name=name, events=tuple(events), pairs=tuple(pairs))
    events = read_events(path, key="pool", ignore_cut_off=False)
    if step is not None:
        events = [event for event in events if int(event.get("step", 0)) <= step]
    found = lifetime_pairs(events, where=str(path)) if lifetime else ()
    current = replay(events, where=str(path))
    pairs = list(found) if lifetime else [current[pair_id] for pair_id in sorted(current)]
    return PoolSource(name=name, events=tuple(events), pairs=tuple(pairs))


def _find(name: str) -> tuple[Path, int | None]:
    """The file, and the step after which its pool is meant."""
    match = None if Path(name).exists() else _AT_STEP.fullmatch(name)
    text, step = (match[1], int(match[2])) if match else (name, None)
    path = Path(text) / "pool.jsonl" if Path(text).is_dir() else pool_file(text)
    if not path.is_file():
        what = "the run has no pool.jsonl" if Path(text).is_dir() else "there is no such file"
        raise ConfigError(
            f"{name}: {what}; give a pool.jsonl, a run's folder, or a YAML list of pairs"
        )
    return path, step


def _read_list(path: Path) -> list[RubricSkillPair]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read: {text}") from error
    entries = content.get("pairs") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(
            f"{path} must hold a list `pairs`, each with title, capability, rubric, skill"
        )
    next_id = max((e["id"] for e in entries if isinstance(e.get("id"), int)), default=0) + 1
    pairs = []
    for number, entry in enumerate(entries, start=1):
        if entry.get("id") is None:
            entry, next_id = {**entry, "id": next_id}, next_id + 1
        pairs.append(RubricSkillPair.from_dict(entry, where=f"{path} pair number {number}"))
    return sorted(pairs, key=lambda pair: pair.id)


def merge(sources: Sequence[PoolSource]) -> tuple[list[RubricSkillPair], list[str]]:
    """One pool out of several, to start a run from.

    The pairs of the first keep their ids; those of the others get new ones where theirs are taken.
    Of two pairs with one title the first counts.

    Returns:
        The pairs, without history, and what was left out or renumbered, as sentences.
    """
    merged: dict[int, RubricSkillPair] = {}
    titles: dict[str, int] = {}
    notes = []
    for source in sources:
        for pair in source.pairs:
            key = fold(pair.title)
            if key in titles:
                notes.append(f"{source.name}: R{pair.id} has the title of R{titles[key]}: left out")
                continue
            new_id = pair.id
            if new_id in merged:
                new_id = max(merged) + 1
                notes.append(f"{source.name}: R{pair.id} becomes R{new_id}")
            titles[key] = new_id
            merged[new_id] = replace(pair, id=new_id, created_at=0, history=())
    return [merged[pair_id] for pair_id in sorted(merged)], notes


def write_events(path: Path, pairs: Iterable[RubricSkillPair]) -> None:
    """Write pairs as the `pool.jsonl` that `rubrics.pool_path` takes.

    Raises:
        ConfigError: The file is there already, or cannot be written.
    """
    lines = [clean_text(json.dumps(_imported(pair), ensure_ascii=False)) + "\n" for pair in pairs]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def as_yaml(pairs: Iterable[RubricSkillPair]) -> str:
    """Pairs as a list for people; `read_pool` reads it back."""
    entries = [
        {
            "id": pair.id,
            "title": pair.title,
            "capability": pair.capability.value,
            "rubric": {
                "applicability": pair.rubric.applicability,
                "fail_condition": pair.rubric.fail_condition,
                "pass_condition": pair.rubric.pass_condition,
            },
            "skill": {
                "text": pair.skill.text,
                "state": pair.skill.state.value,
                "revision": pair.skill.revision,
            },
        }
        for pair in pairs
    ]
    body = yaml.safe_dump({"pairs": entries}, sort_keys=False, allow_unicode=True, width=100)
    return _HEAD + clean_text(body)


def _imported(pair: RubricSkillPair) -> Event:
    data: dict[str, Any] = {**pair.to_dict(), "history": []}
    return new_event(EventType.IMPORTED, 0, pair_id=pair.id, pair=data)
