"""A pair as a page of text: evidence, rubric, skill and its life, as in Appendix F."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arise.rubrics.events import Event, EventType
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.proposals import fold

_WIDTH = 100


def pair_card(pair: RubricSkillPair, events: Sequence[Event]) -> str:
    """Everything about one pair.

    Args:
        pair: The pair as it stands, or as it was when it retired.
        events: All events of the pool; those of other pairs are passed over.
    """
    own = [event for event in events if event.get("pair_id") == pair.id]
    state = "retired" if own and own[-1]["type"] == EventType.RETIRED else pair.skill.state.value
    parts = [
        f"R{pair.id} {pair.title} ({pair.capability.value}; {state}, text revision "
        f"{pair.skill.revision})",
        _paragraph("Evidence", _evidence(own)),
        _paragraph("Applies", pair.rubric.applicability),
        _paragraph("Fail if", pair.rubric.fail_condition),
        _paragraph("Pass if", pair.rubric.pass_condition),
        _paragraph("Skill", pair.skill.text),
        _paragraph("Life", " ".join(_sentence(event) for event in own)),
    ]
    return "\n".join(part for part in parts if part)


def _paragraph(name: str, text: str) -> str:
    if not text:
        return ""
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, initial_indent=f"  {name}: ", subsequent_indent="    "
    )


def _evidence(own: Iterable[Event]) -> str:
    for event in own:
        if event["type"] == EventType.CREATED:
            issues, contrasts = (event["evidence"][key] for key in ("issues", "contrasts"))
            tasks = sorted({str(record["task_id"]) for record in (*issues, *contrasts)})
            shown = ", ".join(tasks[:3]) + (", …" if len(tasks) > 3 else "")
            return (
                f"{_count(len(issues), 'record')} with the issue, "
                f"{_count(len(contrasts), 'record')} with the better behaviour, of "
                f"{_count(len(tasks), 'task')}: {shown}."
            )
    return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _sentence(event: Mapping[str, Any]) -> str:
    kind, step = event["type"], event["step"]
    if kind == EventType.IMPORTED:
        return "Taken over at the start."
    if kind == EventType.CREATED:
        return f"Step {step}: created, skill hidden."
    rate, count = event.get("pass_rate"), event.get("num_applicable", 0)
    at = f"{rate:.1%} of {count}" if rate is not None else "no applicable verdict"
    if kind == EventType.ACTIVATED:
        return f"Step {step}: skill on at {at}."
    if kind == EventType.HIDDEN:
        return f"Step {step}: skill hidden at {at}."
    if kind == EventType.REFINED:
        return f"Step {step}: skill text {event['revision']} at {at}."
    if kind == EventType.RETIRED:
        return f"Step {step}: retired at {at}."
    return f"Step {step}: stays {event.get('state', '')} at {at}."


def retired_pairs(events: Iterable[Event]) -> dict[int, RubricSkillPair]:
    """The pairs that have retired, by id, with their last text."""
    return {
        int(event["pair_id"]): RubricSkillPair.from_dict(event["pair"], where="retired event")
        for event in events
        if event["type"] == EventType.RETIRED
    }


def pool_diff(old: Sequence[RubricSkillPair], new: Sequence[RubricSkillPair]) -> str:
    """What differs between two pools, pair by pair; empty if nothing does.

    Pairs belong together by their titles, since two runs number them each in its own way.
    """
    before = {fold(pair.title): pair for pair in old}
    after = {fold(pair.title): pair for pair in new}
    parts = []
    for key, pair in before.items():
        if key not in after:
            parts.append(f"- R{pair.id} {pair.title} ({pair.capability.value})")
    for key, pair in after.items():
        if key not in before:
            parts.append(f"+ R{pair.id} {pair.title} ({pair.capability.value})")
    for key, pair in after.items():
        if key in before:
            changes = _changes(_fields(before[key]), _fields(pair))
            if changes:
                parts += [f"~ R{before[key].id} -> R{pair.id} {pair.title}", *changes]
    return "\n".join(parts)


def _fields(pair: RubricSkillPair) -> dict[str, str]:
    return {
        "capability": pair.capability.value,
        "applies": pair.rubric.applicability,
        "fail if": pair.rubric.fail_condition,
        "pass if": pair.rubric.pass_condition,
        "state": pair.skill.state.value,
        "skill": pair.skill.text,
    }


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = []
    for name, old in before.items():
        if old != after[name]:
            was, now = (textwrap.wrap(text, _WIDTH - 6) for text in (old, after[name]))
            lines.append(f"  {name}")
            lines += [f"    {line}" for line in difflib.ndiff(was, now) if line[0] != "?"]
    return lines
