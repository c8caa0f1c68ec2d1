"""JSON objects out of a language model's answer, one broken line costing one line."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_ANSWER_CHARS = 400_000
MAX_SPAN_CHARS = 50_000
MAX_BROKEN_SPANS = 20
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
# The closing quote is optional: an unclosed string must not make the search quadratic.
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"?|,(?=\s*[}\]])', re.DOTALL)
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}]', re.DOTALL)
_LINE_START = re.compile(
    r"[\s\ufeff,`*•\-]*(?:\d{1,3}[.)]\s*)?(?:jsonl?\s*)?(?=[\[{])", re.IGNORECASE
)
_LIST = re.compile(r'(?:\{\s*"(?:verdicts|pairs)"\s*:\s*)?\[\s*')
_DECODER = json.JSONDecoder(strict=False)


def read_objects(text: str) -> tuple[list[dict[str, Any]], int]:
    r"""All JSON objects of an answer, in order.

    An object counts where a line begins with it (after a bullet, comma or fence); an object in
    the middle of a sentence does not. Arrays are read as their objects, nested or not. Objects may
    span lines. Invalid escapes (`\$`) and trailing commas are repaired. Fences and prose around
    them are skipped. Of a list that breaks off or has a broken entry, alone or as the first field
    `verdicts` or `pairs` of an object, the entries before that place count; what comes after it
    does not, since only before it is certain what is inside a string and what is not.

    Args:
        text: The answer; what comes after `MAX_ANSWER_CHARS` is ignored.

    Returns:
        The objects, and the number of places that looked like one but could not be read.
    """
    text = text[:MAX_ANSWER_CHARS].replace("\r\n", "\n")
    objects: list[dict[str, Any]] = []
    num_broken = 0
    position = 0
    while position < len(text):
        line_end = text.find("\n", position)
        line_end = len(text) if line_end < 0 else line_end
        line = text[position:line_end]
        opening = _LINE_START.match(line)
        if opening:
            start = position + opening.end()
            is_closed = "}" in line or "]" in line
            found = _read(text[start:line_end]) if is_closed else None
            if found is None and num_broken < MAX_BROKEN_SPANS:
                end = _span_end(text, start)
                found = _read(text[start:end]) if end > line_end else None
                if found is not None:
                    following = text.find("\n", end)
                    line_end = len(text) if following < 0 else following
            if found is not None:
                objects += found
            elif "{" in line:
                num_broken += 1
                objects += _list_prefix(text[start:line_end])
        position = line_end + 1
    return objects, num_broken


def _read(source: str) -> list[dict[str, Any]] | None:
    """The objects at the start of `source`; `None` if not even one value can be read."""
    for candidate in (source, _repair(source)):
        values: list[Any] = []
        position = 0
        while position < len(candidate) and candidate[position] in "{[":
            try:
                value, position = _DECODER.raw_decode(candidate, position)
            except (ValueError, RecursionError):
                break
            values.append(value)
            while position < len(candidate) and candidate[position] in ", \t":
                position += 1
        if values:
            return [entry for value in values for entry in _flatten(value)]
    return None


def _list_prefix(line: str) -> list[dict[str, Any]]:
    """The objects of a broken list on one line, up to the first that cannot be read."""
    source = _repair(line)
    opening = _LIST.match(source)
    objects: list[dict[str, Any]] = []
    position = opening.end() if opening else len(source)
    while position < len(source) and source[position] == "{":
        try:
            value, position = _DECODER.raw_decode(source, position)
        except (ValueError, RecursionError):
            break
        objects.append(value)
        while position < len(source) and source[position] in ", \t":
            position += 1
    return objects


def _flatten(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list):
        return [entry for entry in value if isinstance(entry, dict)]
    return []


def _repair(source: str) -> str:
    source = _ESCAPE.sub(lambda match: match.group() if len(match.group()) > 1 else "\\\\", source)
    return _STRING_OR_COMMA.sub(lambda match: "" if match.group() == "," else match.group(), source)


def _span_end(text: str, start: int) -> int:
    """Where the brackets opened at `start` are closed; `start` if they never are."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start, start + MAX_SPAN_CHARS):
        token = match.group()
        if token in ("{", "["):
            depth += 1
        elif token in ("}", "]"):
            depth -= 1
            if depth == 0:
                return match.end()
    return start
