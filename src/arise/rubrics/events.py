"""The pool's story as events: plain dicts, one per line of `pool.jsonl`.

Every change of the pool *is* an event that was applied, so replaying the file rebuilds the pool at
any step. Each event has `type` and `step` (k+1 of its update; 0 for imports). The types:

| type | further fields |
|---|---|
| `imported` | `pair_id`, `pair` |
| `created` | `pair_id`, `pair`, `evidence` {`issues`, `contrasts`}, `prompt`, `model` |
| `activated`, `hidden` | `pair_id`, `num_passes`, `num_applicable`, `pass_rate` |
| `refined` | the same, `revision`, `text`, `old_text`, `num_records`, `prompt`, `model` |
| `kept` | the counts, `pass_rate` (null if N = 0), `state`, `reason` |
| `retired` | the counts, `pass_rate`, `pair` (the rubric's and skill's last text), `task_ids` |
| `generation` | `num_records`, `num_proposals`, `prompt`, `model`, `error` |
| `rejected` | `reason`, `proposal`, `evidence`, `prompt`, `model` |

`prompt` is the hash of the prompt file, `model` the model that gave the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.rubrics.pair import PairEvent, RubricSkillPair, Skill, SkillState

Event = dict[str, Any]


class EventType(StrEnum):
    """What happened; see the module's table."""

    IMPORTED = "imported"
    CREATED = "created"
    ACTIVATED = "activated"
    HIDDEN = "hidden"
    REFINED = "refined"
    KEPT = "kept"
    RETIRED = "retired"
    GENERATION = "generation"
    REJECTED = "rejected"


def new_event(type_: EventType, step: int, **fields: Any) -> Event:
    """An event of primitives."""
    return {"type": type_.value, "step": step, **fields}


def apply_event(
    pairs: dict[int, RubricSkillPair], event: Mapping[str, Any], *, where: str = "event"
) -> None:
    """Change `pairs` (by id) as `event` says; events that concern no pair change nothing.

    Raises:
        ConfigError: The event does not fit: its type or its pair is not known, or its id is taken.
    """
    type_ = _type_of(event, where)
    if type_ in (EventType.GENERATION, EventType.REJECTED):
        return
    try:
        pair_id = int(event["pair_id"])
        entry = PairEvent(
            step=int(event["step"]),
            type=type_.value,
            num_passes=int(event.get("num_passes", 0)),
            num_applicable=int(event.get("num_applicable", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: event '{type_}' has no proper {error}") from error
    if type_ in (EventType.CREATED, EventType.IMPORTED):
        if pair_id in pairs:
            raise ConfigError(f"{where}: pair {pair_id} exists already")
        pairs[pair_id] = RubricSkillPair.from_dict(event["pair"], where=where).with_event(entry)
        return
    if pair_id not in pairs:
        raise ConfigError(
            f"{where}: event '{type_}' names pair {pair_id}, which is not in the pool"
        )
    if type_ is EventType.RETIRED:
        del pairs[pair_id]
        return
    pairs[pair_id] = pairs[pair_id].with_event(entry, **_skill_changes(type_, event))


def _skill_changes(type_: EventType, event: Mapping[str, Any]) -> dict[str, Any]:
    if type_ is EventType.ACTIVATED:
        return {"state": SkillState.ACTIVE}
    if type_ is EventType.HIDDEN:
        return {"state": SkillState.HIDDEN}
    if type_ is EventType.REFINED:
        return {"text": event["text"], "revision": event["revision"]}
    return {}


def _type_of(event: Mapping[str, Any], where: str) -> EventType:
    try:
        return EventType(event["type"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{where}: not an event of the pool: type is {event.get('type')!r}; allowed: "
            f"{', '.join(type_.value for type_ in EventType)}"
        ) from None


def replay(
    events: Iterable[Mapping[str, Any]], until_step: int | None = None, *, where: str = "events"
) -> dict[int, RubricSkillPair]:
    """The pool's pairs by id after all events up to and including step `until_step`.

    Raises:
        ConfigError: An event does not follow from the ones before it.
    """
    pairs: dict[int, RubricSkillPair] = {}
    for number, event in enumerate(events, start=1):
        if until_step is None or int(event.get("step", 0)) <= until_step:
            apply_event(pairs, event, where=f"{where} line {number}")
    return pairs


def last_id(events: Iterable[Mapping[str, Any]], until_step: int | None = None) -> int:
    """The highest pair id given out up to and including `until_step`; 0 if none."""
    return max(
        (
            int(event["pair_id"])
            for event in events
            if event["type"] in (EventType.CREATED, EventType.IMPORTED)
            and (until_step is None or event["step"] <= until_step)
        ),
        default=0,
    )


def lifetime_pairs(
    events: Iterable[Mapping[str, Any]], *, where: str = "events"
) -> tuple[RubricSkillPair, ...]:
    """Every pair that ever was in the pool, in id order: last text, hidden, no history.

    This is the pool of the frozen-rubrics ablation.

    Raises:
        ConfigError: An event does not follow from the ones before it.
    """
    current: dict[int, RubricSkillPair] = {}
    seen: dict[int, RubricSkillPair] = {}
    for number, event in enumerate(events, start=1):
        apply_event(current, event, where=f"{where} line {number}")
        seen.update(current)
    return tuple(
        replace(pair, skill=Skill(text=pair.skill.text), created_at=0, history=())
        for _, pair in sorted(seen.items())
    )


def read_events(path: Path, *, key: str, ignore_cut_off: bool = False) -> list[Event]:
    """The events in a `pool.jsonl`.

    Args:
        path: The file.
        key: Config key that named it, for messages.
        ignore_cut_off: Leave out a last line without its end: the run is writing it, or died.

    Raises:
        ConfigError: The file cannot be read, or a line is not a JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error}") from error
    if ignore_cut_off:
        lines.pop()
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{key}: {path} line {number} is not JSON: {error}") from error
        if not isinstance(event, dict):
            raise ConfigError(f"{key}: {path} line {number} must be an object, is {event!r:.80}")
        events.append(event)
    return events
