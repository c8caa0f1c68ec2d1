"""Replies in XML-like tags, whose text is taken as it is: nothing in it is encoded."""

from __future__ import annotations

import re

from arise.agents.terminus2.reply import (
    DEFAULT_DURATION_S,
    Keystrokes,
    TerminalReply,
    missing_newlines,
)

_OPEN, _CLOSE = "<response>", "</response>"
_SECTIONS = ("analysis", "plan", "commands")
_KEYSTROKES = re.compile(r"<keystrokes([^>]*)>(.*?)</keystrokes>", re.DOTALL)
_DURATION = re.compile(r"""duration\s*=\s*["']([^"']*)["']""")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos);")


def parse_xml(text: str) -> TerminalReply:
    """Read a reply; text around `<response>` is tolerated, and a missing end tag too."""
    start = text.find(_OPEN)
    if start < 0:
        return TerminalReply(error="there is no <response> in the reply")
    warnings = ["there is text before <response>"] if text[:start].strip() else []
    body, _, after = text[start + len(_OPEN) :].partition(_CLOSE)
    if after.strip():
        warnings.append("there is text after </response>")
    if _OPEN in body + after:
        warnings.append("there are several <response>; only the first one was read")
    sections = {name: _section(body, name) for name in (*_SECTIONS, "task_complete")}
    warnings += [f"<{name}> is missing" for name in ("analysis", "plan") if sections[name] is None]
    is_complete = (sections["task_complete"] or "").strip().lower() in ("true", "1", "yes")
    if sections["commands"] is None:
        if not is_complete:
            return TerminalReply(error="<commands> is missing", warnings=tuple(warnings))
        return TerminalReply(is_complete=True, warnings=tuple(warnings))
    commands = _commands(sections["commands"], warnings)
    if not commands and not is_complete:
        warnings.append("<commands> is empty, so nothing was sent")
    return TerminalReply(
        commands=tuple(commands), is_complete=is_complete, warnings=tuple(warnings)
    )


def _section(body: str, name: str) -> str | None:
    """What stands between the first tags of a name; empty if they close at once."""
    match = re.search(rf"<{name}>(.*?)</{name}>|<{name}\s*/>", body, re.DOTALL)
    return None if match is None else (match[1] or "")


def _commands(text: str, warnings: list[str]) -> list[Keystrokes]:
    commands: list[Keystrokes] = []
    for number, (attributes, keys) in enumerate(_KEYSTROKES.findall(text), start=1):
        duration = DEFAULT_DURATION_S
        match = _DURATION.search(attributes)
        try:
            duration = float(match[1]) if match else DEFAULT_DURATION_S
            problem = "" if match else "has no duration"
            if duration != duration:
                raise ValueError
        except ValueError:
            duration, problem = DEFAULT_DURATION_S, "has an unusable duration"
        if problem:
            warnings.append(f"command {number} {problem}; {DEFAULT_DURATION_S:g} s was taken")
        commands.append(Keystrokes(keys=keys, duration_s=duration))
    warnings += missing_newlines(commands)
    entity = _ENTITY.search(text)
    if entity:
        warnings.append(f"{entity[0]} is sent as it is written, not as the character it names")
    return commands
