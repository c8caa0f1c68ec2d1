"""What a process of several says about itself: that it lives, and what it is at."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One sign of life.

    Attributes:
        count: Signs given so far; silence is a count that stays.
        host: Name of its machine.
        pid: Process id there.
        started: When the process began, in seconds since 1970; tells a reused id apart.
        phase: What it does.
        iteration: Of which iteration.
        point: Steps forward inside the phase.
        still_s: Seconds at this point.
        is_bounded: Whether all ranks go through this phase together, so that none may stay at one
            point for long.
        is_ending: Whether it is about to end in an orderly way, and will say no more.

    Example:
        >>> sign = Sign(count=3, host="a", pid=7, started=0.0, phase="training step", iteration=4)
        >>> Sign.read(sign.write()) == sign
        True
    """

    count: int
    host: str
    pid: int
    started: float
    phase: str = "starting"
    iteration: int = 0
    point: int = 0
    still_s: float = 0.0
    is_bounded: bool = False
    is_ending: bool = False

    @classmethod
    def read(cls, text: str | bytes) -> Sign:
        """The sign that `write` wrote."""
        return cls(**json.loads(text))

    def write(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @property
    def place(self) -> str:
        """For a message: what it was at."""
        point = f", point {self.point}" if self.point else ""
        return f"{self.phase} of iteration {self.iteration}{point}"

    @property
    def process(self) -> str:
        """For a message: which process it is."""
        return f"process {self.pid} on {self.host}"

    def is_gone(self) -> bool:
        """Whether it is a process of this machine that has ended; of others nothing is known."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            is_another = abs(process.create_time() - self.started) > 1.0
            return is_another or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


class OwnSigns:
    """This process's signs; the main thread says what it is at, another thread passes it on."""

    def __init__(self) -> None:
        self._sign = Sign(
            count=0,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=psutil.Process().create_time(),
        )
        self._since = monotonic()
        self._count = 0

    def enter(self, phase: str, iteration: int, *, is_bounded: bool) -> None:
        """Begin another phase."""
        self._move(phase=phase, iteration=iteration, point=0, is_bounded=is_bounded)

    def advance(self) -> None:
        """Come one step further inside the phase."""
        self._move(point=self._sign.point + 1)

    def end(self) -> None:
        """Say with the next sign that it is the last."""
        self._move(is_ending=True)

    def _move(self, **changes: Any) -> None:
        # One assignment, so that the other thread sees the old or the new, nothing between.
        self._sign = replace(self._sign, **changes)
        self._since = monotonic()

    def next(self) -> Sign:
        """A new sign, of now; for one thread."""
        self._count += 1
        still_s = round(monotonic() - self._since, 1)
        return replace(self._sign, count=self._count, still_s=still_s)
