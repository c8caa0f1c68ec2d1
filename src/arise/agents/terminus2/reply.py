"""What a reply asks for, whichever notation it is written in."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_DURATION_S = 1.0
MAX_DURATION_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keystrokes:
    """Keys to send, and how long to wait afterwards, in seconds."""

    keys: str
    duration_s: float = DEFAULT_DURATION_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalReply:
    """A parsed reply.

    Attributes:
        commands: What to send, in order; none is waiting.
        is_complete: Whether the agent says that the task is done.
        error: Why nothing of the reply was executed; empty if all is well.
        warnings: What was tolerated, each in a sentence for the model.
    """

    commands: tuple[Keystrokes, ...] = ()
    is_complete: bool = False
    error: str = ""
    warnings: tuple[str, ...] = ()


def missing_newlines(commands: list[Keystrokes]) -> list[str]:
    """Warnings for keys that run into the next command's."""
    return [
        f"command {number}: its keystrokes do not end with a newline, so they stand on one line "
        "with those of the next command"
        for number, command in enumerate(commands[:-1], start=1)
        if command.keys and not command.keys.endswith("\n")
    ]
