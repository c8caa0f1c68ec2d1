"""Replies in JSON: analysis, plan, commands, and whether the task is complete."""

from __future__ import annotations

import json
from typing import Any

from arise.agents.terminus2.reply import (
    DEFAULT_DURATION_S,
    Keystrokes,
    TerminalReply,
    missing_newlines,
)

_REQUIRED = ("analysis", "plan", "commands")
_KNOWN = {"keystrokes", "duration"}
_TRUE = ("true", "1", "yes")


def parse_json(text: str) -> TerminalReply:
    """Read a reply; text around the object is tolerated, and a missing brace at its end too."""
    start = text.find("{")
    if start < 0:
        return TerminalReply(error="there is no JSON object in the reply")
    warnings = ["there is text before the JSON object"] if text[:start].strip() else []
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        closed = _closed(text[start:])
        if closed is None:
            return TerminalReply(error=f"invalid JSON: {error}", warnings=tuple(warnings))
        value, end = closed, len(text)
        warnings.append("a closing brace was missing at the end; it was added")
    if text[end:].strip():
        warnings.append("there is text after the JSON object")
    return _read(value, text[start:end], warnings)


def _closed(text: str) -> Any | None:
    """The object with the braces that its end lacks, if that is all that it lacks."""
    depth = _open_braces(text)
    if depth < 1:
        return None
    try:
        return json.loads(text + "}" * depth)
    except (ValueError, RecursionError):
        return None


def _open_braces(text: str) -> int:
    depth, in_string, is_escaped = 0, False, False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = in_string
        elif character == '"':
            in_string = not in_string
        elif not in_string:
            depth += (character == "{") - (character == "}")
    return 0 if in_string else depth


def _read(value: dict[str, Any], source: str, warnings: list[str]) -> TerminalReply:
    missing = [name for name in _REQUIRED if name not in value]
    if missing:
        return TerminalReply(
            error=f"required fields are missing: {', '.join(missing)}", warnings=tuple(warnings)
        )
    warnings += [
        f"{name} should be text" for name in ("analysis", "plan") if type(value[name]) is not str
    ]
    order = [name for name in value if name in _REQUIRED]
    if order != list(_REQUIRED):
        warnings.append(f"the fields stand in the order {', '.join(order)}")
    complete = value.get("task_complete", False)
    if complete is not None and not isinstance(complete, bool | str):
        warnings.append("task_complete should be true or false")
    is_complete = complete.lower() in _TRUE if isinstance(complete, str) else bool(complete)
    commands, error = _commands(value["commands"], warnings)
    if error and is_complete and isinstance(value["commands"], list):
        warnings.append(error)  # nothing was to be run any more
        error = ""
    if error:
        return TerminalReply(error=error, warnings=tuple(warnings))
    return TerminalReply(
        commands=tuple(commands), is_complete=is_complete, warnings=tuple(warnings)
    )


def _commands(value: Any, warnings: list[str]) -> tuple[list[Keystrokes], str]:
    if not isinstance(value, list):
        return [], "commands must be an array"
    commands: list[Keystrokes] = []
    for number, item in enumerate(value, start=1):
        if not isinstance(item, dict):
            return [], f"command {number} must be an object"
        keys = item.get("keystrokes")
        if not isinstance(keys, str):
            return [], f"command {number} needs keystrokes, which is text"
        given, duration_s = item.get("duration"), DEFAULT_DURATION_S
        if isinstance(given, int | float) and not isinstance(given, bool) and given == given:
            duration_s = float(given)
        else:
            what = "has no" if "duration" not in item else "has an unusable"
            warnings.append(f"command {number} {what} duration; {duration_s:g} s was taken")
        unknown = sorted(set(item) - _KNOWN)
        if unknown:
            warnings.append(f"command {number} has unknown fields: {', '.join(unknown)}")
        commands.append(Keystrokes(keys=keys, duration_s=duration_s))
    warnings += missing_newlines(commands)
    return commands, ""
