"""The token rows of one trajectory whose calls come as messages, from an agent program.

A call extends a row if its messages are those of the row, the last reply included, and more: the
prompt is then the row's own tokens followed by what is new, exactly. A reply is compared by what
was returned to the client: text, calls and reasoning. Everything else begins a new row, whose
prompt is rendered afresh, or is an exact part of an earlier row if it goes back to one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from arise.agents.chat_calls import ChatAnswer, ChatCall, same_tools
from arise.agents.rendering import ChatRenderer
from arise.errors import ConfigError
from arise.inference.base import Completion
from arise.types import Turn

_TIMES = re.compile(
    r"\d+|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b|\b[ap]\.?m\b|"
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sep(?:tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"0(?:[^0-9a-z]*0)*", re.IGNORECASE)


class RowReason(StrEnum):
    """Why a call could not extend a row."""

    SUB_AGENT = "sub_agent"
    TIME_STAMP = "time_stamp"
    DROPPED_THINKING = "dropped_thinking"
    COMPACTION = "compaction"
    BRANCH = "branch"
    EDITED = "edited"
    TEMPLATE = "template"


@dataclass(slots=True)
class _Row:
    """One unbroken history.

    Attributes:
        tools: Definitions in its prompt.
        keys: Its messages in the form in which they are compared.
        token_ids: All its tokens.
        turns: Its calls.
        marks: (number of keys, number of tokens, whether a reply ends there), to go back to.
        text: Of a row without messages: prompt and replies as text.
    """

    tools: tuple[Mapping[str, Any], ...]
    keys: list[tuple[Any, ...]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    marks: list[tuple[int, int, bool]] = field(default_factory=list)
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A call's prompt and where it belongs; for `Dialogue.record`.

    Attributes:
        token_ids: int[P], the whole prompt.
        num_kept: Tokens that the row holds already; 0 for a new row.
        row: The row to extend.
        keys: All messages of the call.
        observation: What is new since the row's last reply, as text.
        reason: Why a new row begins; `None` if it does not or is the first.
        call: The call.
    """

    token_ids: tuple[int, ...]
    num_kept: int
    row: Any
    keys: tuple[tuple[Any, ...], ...]
    observation: str
    reason: RowReason | None
    call: ChatCall


class Dialogue:
    """Merges calls into rows.

    Args:
        renderer: Token-exact chat rendering.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._rows: list[_Row] = []

    @property
    def turns(self) -> list[Turn]:
        """All calls, those of a row together, rows in the order of their beginning."""
        return [turn for row in self._rows for turn in row.turns]

    def prompt(self, call: ChatCall) -> Prompt:
        """The tokens that the model has to see for `call`.

        Raises:
            ConfigError: The chat template cannot write its messages.
        """
        if call.prompt is not None:
            return self._raw_prompt(call)
        keys = tuple(message_key(message) for message in call.messages)
        row, (num_keys, num_tokens, is_reply) = self._deepest(keys, call)
        rest = call.messages[num_keys:]
        reason: RowReason | None = None
        if row is not None:
            start = row.token_ids[:num_tokens]
            is_end = num_tokens == len(row.token_ids)
            try:
                added = self._added(start, rest, is_reply)
            except ConfigError:  # the template takes such messages in a fresh prompt only
                row, reason = None, RowReason.TEMPLATE
            else:
                return Prompt(
                    token_ids=(*start, *added),
                    num_kept=num_tokens if is_end else 0,
                    row=row if is_end else _Row(tools=call.tools),
                    keys=keys,
                    observation="\n".join(message["content"] for message in rest),
                    reason=None if is_end else RowReason.BRANCH,
                    call=call,
                )
        if reason is None and self._rows:
            reason = self._reason(keys, call)
        return Prompt(
            token_ids=self._renderer.start(call.messages, tools=call.tools),
            num_kept=0,
            row=_Row(tools=call.tools),
            keys=keys,
            observation="",
            reason=reason,
            call=call,
        )

    def _added(
        self, start: Sequence[int], rest: Sequence[Mapping[str, Any]], is_reply: bool
    ) -> tuple[int, ...]:
        if not is_reply and not rest:
            return ()  # the same prompt once more
        return self._renderer.continuation(rest, last_token_id=start[-1])

    def _deepest(
        self, keys: tuple[tuple[Any, ...], ...], call: ChatCall
    ) -> tuple[_Row | None, tuple[int, int, bool]]:
        """The row that shares most with a call, and the place in it to go on from."""
        best: tuple[_Row | None, tuple[int, int, bool]] = (None, (0, 0, False))
        for row in reversed(self._rows):
            if row.text is not None or not same_tools(row.tools, call.tools):
                continue
            for mark in row.marks:
                num_keys, _, is_reply = mark
                # Something new has to follow a reply, and nothing a prompt.
                fits = num_keys < len(keys) if is_reply else num_keys == len(keys)
                deeper = best[0] is None or num_keys > best[1][0]
                if fits and deeper and keys[:num_keys] == tuple(row.keys[:num_keys]):
                    best = (row, mark)
        return best

    def _reason(self, keys: tuple[tuple[Any, ...], ...], call: ChatCall) -> RowReason:
        """Why a call extends no row."""
        related = [
            row
            for row in self._rows
            if row.keys and row.keys[0][:2] == keys[0][:2] and same_tools(row.tools, call.tools)
        ]
        if keys[0][0] != "system":
            related = [row for row in self._rows if same_tools(row.tools, call.tools)]
        if not related:
            return RowReason.SUB_AGENT
        row = max(related, key=lambda row: _num_common(row.keys, keys))
        place = _num_common(row.keys, keys)
        if place >= len(keys) or place >= len(row.keys):
            return RowReason.BRANCH
        mine, theirs = row.keys[place], keys[place]
        if mine[0] == theirs[0] == "assistant" and mine[:3] == theirs[:3]:
            return RowReason.DROPPED_THINKING if not theirs[3] else RowReason.EDITED
        if mine[0] == theirs[0] and _timeless(mine[1]) == _timeless(theirs[1]):
            return RowReason.TIME_STAMP
        return RowReason.COMPACTION if len(keys) < len(row.keys) else RowReason.EDITED

    def _raw_prompt(self, call: ChatCall) -> Prompt:
        """The prompt of a call without messages; rows match by their tokens or their text."""
        prompt = call.prompt
        assert prompt is not None
        for row in reversed(self._rows):
            count = len(row.token_ids)
            if isinstance(prompt, tuple):
                token_ids = prompt if list(prompt[:count]) == row.token_ids else None
            elif row.text is not None and prompt.startswith(row.text):
                rest = self._renderer.encode_template_text(prompt[len(row.text) :])
                token_ids = (*row.token_ids, *rest)
            else:
                token_ids = None
            if token_ids is not None:
                return self._raw(call, token_ids, row=row, num_kept=count)
        if isinstance(prompt, str):
            prompt = self._renderer.encode_template_text(prompt)
        reason = RowReason.EDITED if self._rows else None
        return self._raw(call, prompt, row=_Row(tools=(), text=""), num_kept=0, reason=reason)

    def _raw(
        self,
        call: ChatCall,
        token_ids: tuple[int, ...],
        *,
        row: _Row,
        num_kept: int,
        reason: RowReason | None = None,
    ) -> Prompt:
        observation = ""
        if num_kept:
            observation = self._renderer.decode(token_ids[num_kept:])
        return Prompt(
            token_ids=token_ids,
            num_kept=num_kept,
            row=row,
            keys=(),
            observation=observation,
            reason=reason,
            call=call,
        )

    def record(
        self, prompt: Prompt, completion: Completion, answer: ChatAnswer, *, action: str | None
    ) -> None:
        """Add an answered call to its row."""
        row: _Row = prompt.row
        if not any(known is row for known in self._rows):
            self._rows.append(row)
        elif row.turns:
            row.turns[-1] = replace(row.turns[-1], observation=prompt.observation)
        row.turns.append(
            Turn(
                prompt_token_ids=prompt.token_ids[prompt.num_kept :],
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                policy_versions=completion.policy_versions,
                text=answer.text,
                action=action,
                finish_reason=completion.finish_reason,
                starts_row=prompt.num_kept == 0,
            )
        )
        row.token_ids = [*prompt.token_ids, *completion.token_ids]
        if prompt.call.prompt is None:
            row.keys = [*prompt.keys, message_key(answer.message)]
            row.marks += [
                (len(prompt.keys), len(prompt.token_ids), False),
                (len(row.keys), len(row.token_ids), True),
            ]
        elif isinstance(prompt.call.prompt, str):
            row.text = prompt.call.prompt + answer.text


def message_key(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two messages have to share to be the same: role, text, calls, reasoning."""
    calls = tuple(
        (call["function"]["name"], _arguments_key(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    content = message.get("content") or ""
    if message["role"] == "assistant":
        content = content.strip()
    return (message["role"], content, calls, (message.get("reasoning_content") or "").strip())


def _arguments_key(arguments: Any) -> str:
    value = arguments
    if isinstance(arguments, str):
        value = json.loads(arguments) if arguments else {}
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _num_common(mine: Sequence[Any], theirs: Sequence[Any]) -> int:
    count = 0
    for one, other in zip(mine, theirs, strict=False):
        if one != other:
            break
        count += 1
    return count


def _timeless(text: str) -> str:
    return _NUMBERS.sub("0", _TIMES.sub("0", text))
