"""What a generated task is before it becomes a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Need(StrEnum):
    """A behaviour without which a task cannot be solved; the instruction does not tell which."""

    READ = "read"
    HEED = "heed"
    VERIFY = "verify"
    FINISH = "finish"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What a revealed word changes about the main command.

    Attributes:
        word: The word that an error, or the written file, names.
        probes: Commands to run before the main command is tried again.
        extra: Argument to append to the main command; empty if none.
        source: Input that replaces the main command's first one; empty if none.
    """

    word: str
    probes: tuple[str, ...] = ()
    extra: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a task is solved, for the scripted expert; never shown to a policy or a judge.

    Attributes:
        document: File that may hold a rule.
        opening: Commands of earlier steps, which always succeed.
        command: Main command, with SOURCE and EXTRA standing for its variable parts.
        source: First input of the main command.
        check: Command that shows what the main command wrote.
        rule: Argument that the document adds; empty if it adds none.
        heed: What the first failure asks for; `None` if nothing fails.
        verify: What the check reveals; `None` if the output is right at once.
        closing: The last step that the instruction asks for; empty if there is none.
    """

    document: str
    command: str
    source: str
    check: str
    opening: tuple[str, ...] = ()
    rule: str = ""
    heed: Fix | None = None
    verify: Fix | None = None
    closing: str = ""

    def main(self, source: str, extras: tuple[str, ...]) -> str:
        """The main command for one input and the arguments learned so far."""
        return self.command.replace("SOURCE", source).replace(
            "EXTRA", "".join(f" {extra}" for extra in extras)
        )

    def solution(self) -> tuple[str, ...]:
        """The shortest sequence of commands that solves the task."""
        source = self.source
        extras: tuple[str, ...] = (self.rule,) if self.rule else ()
        probes: tuple[str, ...] = ()
        for fix in (self.heed, self.verify):
            if fix is not None:
                source = fix.source or source
                extras += (fix.extra,) if fix.extra else ()
                probes += fix.probes
        closing = (self.closing,) if self.closing else ()
        return (*self.opening, *probes, self.main(source, extras), *closing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a family makes: a task without identity.

    Attributes:
        instruction: What the agent is asked to do.
        files: Path to content of what lies in the working directory.
        expected: Path to content of what must lie there at the end.
        gone: Paths that must not exist at the end.
        plan: How to solve it.
    """

    instruction: str
    files: Mapping[str, str]
    expected: Mapping[str, str]
    plan: Plan
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One generated task.

    Attributes:
        id: Unique name, also the folder's name.
        family: Which generator made it.
        domain: Reporting group.
        tags: Task types.
        needs: Behaviours it cannot be solved without.
        draft: Its content.
    """

    id: str
    family: str
    domain: str
    tags: tuple[str, ...]
    draft: Draft
    needs: frozenset[Need] = field(default_factory=frozenset)

    @property
    def instruction(self) -> str:
        """What the agent is asked to do."""
        return self.draft.instruction

    @property
    def plan(self) -> Plan:
        """How to solve it."""
        return self.draft.plan
