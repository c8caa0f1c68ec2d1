"""Texts of policies, programs and models as a terminal may show them."""

from __future__ import annotations

from rich.text import Text

_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: "\u2421"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def visible(text: object) -> Text:
    """Text of a policy or a program, which must not steer the reader's terminal."""
    return Text(str(text).translate(_CONTROLS))
