"""Reads replies of the Hermes and Qwen kind: thinking, text, and tool calls.

Two notations are read inside `<tool_call>`: a JSON object with `name` and `arguments`, and
`<function=NAME><parameter=KEY>VALUE</parameter></function>`. JSON is read by a JSON decoder, not
cut out by a pattern, so an argument may hold `</tool_call>`, and prose may follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>\n?")
# The end of a value is the first closing tag that is followed by another tag of the notation.
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION_END = re.compile(r"\s*</function>")
_SPACE = re.compile(r"\s*")
_JSON = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that could be read: the tool's name and its arguments, not checked yet."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenCall:
    """One call that could not be read, and why, in words for the model."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A reply in its parts.

    Attributes:
        reasoning: Text before `</think>`.
        content: Text outside of reasoning and calls.
        calls: In the order in which they stand.
    """

    reasoning: str
    content: str
    calls: tuple[ToolCall | BrokenCall, ...]


def parse_reply(text: str, *, schemas: Mapping[str, Mapping[str, Any]]) -> ParsedReply:
    r"""Take a reply apart.

    Args:
        text: The generated tokens decoded.
        schemas: JSON schema of the arguments by tool name; says what a parameter that is written
            as plain text stands for.

    Example:
        >>> parse_reply(
        ...     'ok <tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
        ...     schemas={},
        ... ).calls
        (ToolCall(name='bash', arguments={'command': 'ls'}),)
    """
    reasoning, body = split_reasoning(text)
    calls: list[ToolCall | BrokenCall] = []
    content: list[str] = []
    position = 0
    while (start := body.find(_OPEN, position)) >= 0:
        content.append(body[position:start])
        found, position, prose = _read_block(body, start + len(_OPEN), schemas)
        calls += found
        content.append(prose)
    content.append(body[position:])
    return ParsedReply(reasoning=reasoning, content="".join(content).strip(), calls=tuple(calls))


def split_reasoning(text: str) -> tuple[str, str]:
    """(reasoning, the rest); reasoning that never ends is all there is."""
    before, mark, after = text.partition("</think>")
    if not mark:
        opened = text.lstrip().startswith("<think>")
        return (text.lstrip()[len("<think>") :].strip(), "") if opened else ("", text)
    return before.replace("<think>", "", 1).strip(), after


def shown_call(call: ToolCall) -> str:
    """A call as the judge and people read it: a command as it is, else the tool's name first."""
    if set(call.arguments) >= {"command"} and isinstance(call.arguments["command"], str):
        return call.arguments["command"]
    return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"


def _read_block(
    text: str, position: int, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[list[ToolCall | BrokenCall], int, str]:
    """Calls from after `<tool_call>`, the position after the block, and prose inside it."""
    calls: list[ToolCall | BrokenCall] = []
    position = _skip_space(text, position)
    try:
        while text.startswith(("{", "[", "<function="), position):
            if text[position] == "<":
                call, position = _read_function(text, position, schemas)
                calls.append(call)
            else:
                value, position = _read_json(text, position)
                calls += [
                    _as_call(item) for item in (value if isinstance(value, list) else [value])
                ]
            position = _skip_space(text, position)
        if not calls:
            raise _Unreadable("it holds neither a JSON object nor <function=...>", position)
    except _Unreadable as error:
        calls.append(BrokenCall(problem=f"the tool call cannot be read: {error}"))
        position = error.position
    end = _block_end(text, position)
    return calls, end[1], text[position : end[0]].strip()


def _block_end(text: str, position: int) -> tuple[int, int]:
    """Where the block's text ends, and where the text after it begins."""
    close, following = text.find(_CLOSE, position), text.find(_OPEN, position)
    if close >= 0 and (following < 0 or close < following):
        return close, close + len(_CLOSE)
    end = following if following >= 0 else len(text)
    return end, end


class _Unreadable(Exception):
    def __init__(self, problem: str, position: int) -> None:
        super().__init__(problem)
        self.position = position


def _read_json(text: str, position: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise _Unreadable(
            f"invalid JSON, {error.msg} at character {error.pos - position} of the call", position
        ) from None
    except RecursionError:
        raise _Unreadable("the JSON is nested too deeply", position) from None


def _as_call(value: Any) -> ToolCall | BrokenCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return BrokenCall(problem='a tool call must be an object with the text "name"')
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None or arguments == "":
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return BrokenCall(problem=f'the "arguments" of {value["name"]} are no JSON object')
    if not isinstance(arguments, dict):
        return BrokenCall(problem=f'the "arguments" of {value["name"]} must be an object')
    return ToolCall(name=value["name"], arguments=arguments)


def _read_function(
    text: str, position: int, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[ToolCall, int]:
    start = position
    head = _FUNCTION.match(text, position)
    if head is None or not head[1].strip():
        raise _Unreadable("<function=...> names no tool", start + 1)
    name, position = head[1].strip(), head.end()
    properties = schemas.get(name, {}).get("properties", {})
    arguments: dict[str, Any] = {}
    while (parameter := _PARAMETER.match(text, position)) is not None:
        end = _VALUE_END.search(text, parameter.end())
        if end is None:
            raise _Unreadable(f"<parameter={parameter[1]}> has no end", parameter.end())
        key = parameter[1].strip()
        value = text[parameter.end() : end.start()]
        arguments[key] = _typed(value, properties.get(key, {}))
        position = end.end()
    end = _FUNCTION_END.match(text, position)
    if end is None:
        raise _Unreadable(f"<function={name}> has no </function>", position)
    return ToolCall(name=name, arguments=arguments), end.end()


def _typed(value: str, schema: Mapping[str, Any]) -> Any:
    """A parameter written as text in the type that the schema names; unreadable ones stay text."""
    if schema.get("type", "string") == "string":
        return value
    try:
        return json.loads(value, strict=False)
    except (ValueError, RecursionError):
        return value


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
