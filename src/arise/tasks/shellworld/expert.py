"""A scripted agent that solves every task, and fails where a behaviour is switched off.

It uses only what it has seen: a rule after reading the document, a word after an error named it.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass

from arise.tasks.shellworld.spec import Fix, Plan

SUBMIT = "submit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposition:
    """Which behaviours an agent shows.

    Attributes:
        read: Reads the document before it writes.
        heed: Changes a failed command as its error says.
        verify: Looks at what it wrote, and repairs it.
        finish: Does the last step that the instruction asks for.
        waste: Probability that a useful command is accompanied by a useless one.
        recheck: Probability of looking again after a repair.
    """

    read: bool = True
    heed: bool = True
    verify: bool = True
    finish: bool = True
    waste: float = 0.0
    recheck: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a command gave."""

    exit_code: int
    output: str


Commands = Generator[str, Seen, None]


class Expert:
    """Plays one episode: a generator of commands that is sent what each one gave.

    Args:
        plan: How the task is solved.
        disposition: Which behaviours to show.
        rng: For the flawed parts.

    Example:
        >>> commands = Expert(plan, Disposition(), random.Random(0)).play()
        >>> command = next(commands)
        >>> command = commands.send(Seen(exit_code=0, output=""))
    """

    def __init__(self, plan: Plan, disposition: Disposition, rng: random.Random) -> None:
        self._plan = plan
        self._shows = disposition
        self._rng = rng
        self._source = plan.source
        self._extras: tuple[str, ...] = ()

    def play(self) -> Commands:
        """All commands of the episode; the last one is `submit`."""
        plan, shows = self._plan, self._shows
        if shows.read:
            yield from self._do(f"cat {plan.document}")
            self._extras += (plan.rule,) if plan.rule else ()
        for command in plan.opening:
            yield from self._do(command)
        yield from self._write()
        if shows.verify:
            yield from self._verify()
        if shows.finish and plan.closing:
            yield from self._do(plan.closing)
        if self._rng.random() < shows.waste:
            yield "ls"
        yield SUBMIT

    def _main(self) -> str:
        return self._plan.main(self._source, self._extras)

    def _do(self, command: str) -> Generator[str, Seen, Seen]:
        """One useful command, and perhaps a useless one before or after it."""
        wasteful = self._rng.random() < self._shows.waste
        listing = self._rng.random() < 0.5
        if wasteful and listing:
            yield "ls"
        seen = yield command
        # Whether a failed command is repeated is another behaviour's question.
        if wasteful and not listing and seen.exit_code == 0:
            seen = yield command
        return seen

    def _learn(self, fix: Fix) -> Commands:
        for probe in fix.probes:
            _ = yield probe
        self._source = fix.source or self._source
        self._extras += (fix.extra,) if fix.extra else ()

    def _write(self) -> Commands:
        """The main command until it succeeds, or stubbornly without a change."""
        seen = yield from self._do(self._main())
        if seen.exit_code == 0:
            return
        if self._shows.heed and self._plan.heed is not None:
            yield from self._learn(self._plan.heed)
            yield self._main()
            return
        while seen.exit_code != 0 and self._rng.random() < 0.6:
            seen = yield self._main()

    def _verify(self) -> Commands:
        seen = yield from self._do(self._plan.check)
        fix = self._plan.verify
        if fix is None or fix.word not in seen.output:
            return
        yield from self._learn(fix)
        yield self._main()
        if self._rng.random() < self._shows.recheck:
            yield self._plan.check
