"""Keeps the contents of messages apart from what a chat template writes around them.

A template is rendered with a *mark* in place of each content. Its own text is then tokenised with
special tokens and each content without, so that text which spells `<|im_end|>` stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PREFIX = "arisemark"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MARK = re.compile(f"{_PREFIX}[a-z]{{4}}")


class MarkedMessages:
    """Messages whose contents are replaced by marks.

    Args:
        messages: With string contents; assistant messages may have `reasoning_content`, and
            `tool_calls` whose arguments are mappings.

    Attributes:
        messages: The same messages with marks.
        required: Marks that a template has to write exactly once.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._contents: dict[str, str] = {}
        self.required: list[str] = []
        self.messages = [self._marked(message) for message in messages]

    def _marked(self, message: Mapping[str, Any]) -> dict[str, Any]:
        marked = dict(message)
        marked["content"] = self._mark(message.get("content") or "")
        if message.get("reasoning_content"):
            # A template may drop the reasoning of earlier turns.
            marked["reasoning_content"] = self._mark(message["reasoning_content"], required=False)
        if message.get("tool_calls"):
            marked["tool_calls"] = [self._marked_call(call) for call in message["tool_calls"]]
        return marked

    def _marked_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        function["arguments"] = self._marked_value(function["arguments"])
        return {**call, "function": function}

    def _marked_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mark(value)
        if isinstance(value, Mapping):
            return {key: self._marked_value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._marked_value(item) for item in value]
        return value

    def _mark(self, content: str, *, required: bool = True) -> str:
        if not content:
            return content
        number, mark = len(self._contents), _PREFIX
        for power in (3, 2, 1, 0):
            mark += _LETTERS[number // 26**power % 26]
        self._contents[mark] = content
        if required:
            self.required.append(mark)
        return mark

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Split a rendered text into (piece, whether it is content).

        A content that a template put into JSON stands between quotation marks and is written as
        JSON there.
        """
        end = 0
        for match in _MARK.finditer(text):
            content = self._contents.get(match[0])
            if content is None:
                continue
            start, stop = match.span()
            yield text[end:start], False
            if text[start - 1 : start] == '"' == text[stop : stop + 1]:
                content = json.dumps(content, ensure_ascii=False)[1:-1]
            yield content, True
            end = stop
        yield text[end:], False


def without_call_strings(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`messages` with tool-call arguments as mappings.

    Clients send them as JSON text, which templates either refuse or encode twice. Text that is no
    JSON object becomes a mapping with the one key `arguments`.
    """
    return [
        {**message, "tool_calls": [_with_mapping(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


def _with_mapping(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    function["arguments"] = arguments_of(function.get("arguments"))
    return {"id": call.get("id", ""), "type": "function", "function": function}


def arguments_of(value: Any) -> dict[str, Any]:
    """Arguments of a tool call as a mapping; missing, empty or null ones are an empty mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            parsed = json.loads(value, strict=False)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            return parsed
        if parsed is None and value.strip() == "null":
            return {}
    return {"arguments": value}
