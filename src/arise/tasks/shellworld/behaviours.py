"""What an episode's trace shows: five behaviours, one for each capability.

Decided from the instruction, the commands and what they printed alone; neither the verifier's
outcome nor a task's hidden plan is used, so that a judge may use the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from arise.types import Capability


class Behaviour(StrEnum):
    """An observable requirement."""

    READ = "read"
    HEED = "heed"
    VERIFY = "verify"
    FINISH = "finish"
    THRIFT = "thrift"


CAPABILITY = {
    Behaviour.READ: Capability.UNDERSTANDING,
    Behaviour.HEED: Capability.DEBUGGING,
    Behaviour.VERIFY: Capability.VERIFICATION,
    Behaviour.FINISH: Capability.EXECUTION,
    Behaviour.THRIFT: Capability.EFFICIENCY,
}
"""The capability that each behaviour belongs to."""

_DOCUMENT = re.compile(r"\b[a-z]+\.md\b")
_LAST_STEP = re.compile(r"(?:Then|At the end)\b.*?\b([a-z]+\.(?:log|tmp))\b")
_NAMED = re.compile(r"\b(?:need|want|give|use)\b.*?([a-z]+)\s*$", re.MULTILINE)
_REDIRECT = re.compile(r">\s*(\S+)\s*$")
_LOOKS = ("cat ", "ls", "head ", "tail ", "grep ", "wc ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command and the observation that the agent got for it."""

    command: str
    observation: str = ""

    @property
    def failed(self) -> bool:
        """Whether the observation begins with an exit code, which only failures have."""
        return self.observation.startswith("[exit ")


def written(command: str) -> tuple[str, ...]:
    """Files or folders that `command` writes to; empty if it only looks."""
    redirect = _REDIRECT.search(command)
    if redirect:
        return (redirect.group(1),)
    words = command.split()
    if words[:1] == ["sh"]:
        return tuple(words[3:4])
    if words[:2] == ["sed", "-i"]:
        return tuple(words[3:])
    if words[:1] in (["mv"], ["cp"]):
        return tuple(words[-1:])
    return tuple(words[1:]) if words[:1] == ["rm"] else ()


def looks_at(command: str) -> tuple[str, ...]:
    """Words of a command that only looks; empty for any other."""
    if _REDIRECT.search(command) or not command.startswith(_LOOKS):
        return ()
    return tuple(command.split()[1:]) or (".",)


def _read(instruction: str, steps: Sequence[Step]) -> bool | None:
    documents = set(_DOCUMENT.findall(instruction))
    if not documents:
        return None
    for step in steps:
        if documents & set(looks_at(step.command)):
            return True
        if written(step.command):
            return False
    return False


def _heeds(failed: Step, following: Step) -> bool:
    if following.command == failed.command:
        return False
    named = _NAMED.findall(failed.observation)
    if named:
        return named[-1] in re.findall(r"[a-z]+", following.command)
    if "No such file" in failed.observation:
        return following.command.startswith("ls")
    return True


def _heed(steps: Sequence[Step]) -> bool | None:
    failures = [index for index, step in enumerate(steps[:-1]) if step.failed]
    if not failures:
        return None
    return all(_heeds(steps[index], steps[index + 1]) for index in failures)


def _verify(steps: Sequence[Step]) -> bool | None:
    made: set[str] = set()
    for step in steps:
        if made & set(looks_at(step.command)):
            return True
        if not step.failed:
            made |= {name for name in written(step.command) if not name.endswith((".sh", ".log"))}
    return False if made else None


def _finish(instruction: str, steps: Sequence[Step]) -> bool | None:
    asked = _LAST_STEP.search(instruction)
    if asked is None:
        return None
    return any(asked.group(1) in written(step.command) for step in steps)


def _thrift(steps: Sequence[Step], submitted: bool) -> bool | None:
    if not steps:
        return None
    previous = Step(command="")
    for step in steps:
        idle = step.command == "ls" and not previous.failed
        if idle or step.command == previous.command:
            return False
        previous = step
    return submitted


def observe_behaviours(
    instruction: str, steps: Sequence[Step], *, submitted: bool
) -> dict[Behaviour, bool | None]:
    """Which behaviours a trace shows.

    Args:
        instruction: The task as the agent saw it.
        steps: Commands in order, without `submit`.
        submitted: Whether the agent ended the episode itself.

    Returns:
        True (shown), False (lacking) or `None` (nothing in the trace called for it).

    Example:
        >>> steps = [Step(command="cat rules.md", observation="use unit opal")]
        >>> observe_behaviours("Sort a.txt. See rules.md.", steps, submitted=True)[Behaviour.READ]
        True
    """
    # `submit` after a failure is an answer to it, and not one that heeds it.
    ended = [*steps, Step(command="submit")] if submitted else list(steps)
    return {
        Behaviour.READ: _read(instruction, steps),
        Behaviour.HEED: _heed(ended),
        Behaviour.VERIFY: _verify(steps),
        Behaviour.FINISH: _finish(instruction, steps),
        Behaviour.THRIFT: _thrift(steps, submitted),
    }
