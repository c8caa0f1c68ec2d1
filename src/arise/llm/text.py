"""Text that is safe to send, to log and to put into a prompt as data."""

from __future__ import annotations

import json
import re
from typing import Any

# A chat template's control tokens are recognised inside a message's content too, and some
# characters end a line for some readers. Written as JSON escapes they are only characters.
_UNSAFE = re.compile(
    r"<(?=\||｜|<?/?(?:s|bos|eos|pad|sop|think|SYS|tool_call|tool_response|(?:start|end)_of_turn)>)"
    r"|\[(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT|gMASK)\])"
    r"|\](?=~!?b\[)|\[(?=e~\[)"
    "|[\x7f\x85\u2028\u2029]"
)
_OBJECT_LINE = re.compile(r"^\W*[\[{]", re.MULTILINE)
_THINKING_END = re.compile(r"</think>[ \t\r]*$", re.MULTILINE)


def clean_text(text: str) -> str:
    """`text` as valid Unicode: a lone surrogate becomes U+FFFD, a surrogate pair its character.

    Example:
        >>> clean_text("a" + chr(0xDCFF))
        'a\ufffd'
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def dump_json(value: Any) -> str:
    """`value` as JSON on one line that cannot leave the fenced block it is put into.

    Line breaks inside strings are escaped, so no line of the data starts with a fence, and the
    markers by which chat templates tell messages apart are written as escapes.
    """
    text = clean_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def dump_jsonl(values: list[Any] | tuple[Any, ...]) -> str:
    """Each of `values` on its own line; see `dump_json`."""
    return "\n".join(dump_json(value) for value in values)


def without_thinking(text: str) -> str:
    """An answer without the thinking that some endpoints leave in front of it.

    Thinking ends with the first line that ends with `</think>`. If it was begun and never ended,
    the answer was cut before it came: nothing is left. Where no `<think>` begins it, as with
    templates that put that into the prompt, it counts only if no object stands before its end:
    else a marker that the answer quotes could hide what the answer says before it.

    Example:
        >>> without_thinking("<think>\\nPerhaps.\\n</think>\\n{}")
        '\\n{}'
    """
    end = _THINKING_END.search(text)
    if text.lstrip().startswith("<think>"):
        return text[end.end() :] if end else ""
    if end and not _OBJECT_LINE.search(text, 0, end.start()):
        return text[end.end() :]
    return text


def cut_middle(text: str, limit: int) -> str:
    """Head and tail of `text`, with a line between them that says how much was left out.

    Args:
        text: Any text; returned unchanged if it is no longer than `limit`.
        limit: Characters to keep, the note included. A note alone may be a little longer.
    """
    if len(text) <= limit:
        return text
    kept = limit
    for _ in range(2):  # the number of digits in the note depends on what is kept
        note = f"\n[… {len(text) - kept} characters left out …]\n"
        kept = max(0, limit - len(note))
    head = kept - kept // 2
    tail = len(text) - kept // 2
    return f"{text[:head]}\n[… {len(text) - kept} characters left out …]\n{text[tail:]}"
