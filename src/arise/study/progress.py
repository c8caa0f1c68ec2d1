"""Where a study is, and how long it still takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from arise.study.state import RunState

_PAUSE_S = 60.0


class Progress:
    """Counts iterations over all runs; thread-safe.

    The time left is what the iterations of this session took, wall clock, times those to come: it
    holds for any number of runs at once, evaluations included.

    Args:
        states: How the runs stand at the start.
        clock: Seconds.
        say: Prints a line.
    """

    def __init__(
        self,
        states: Sequence[RunState],
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
    ) -> None:
        self._clock, self._say = clock, say
        self._lock = threading.Lock()
        self._started_at = clock()
        self._said_at = self._started_at
        self._max_steps = {state.spec.name: state.spec.max_steps for state in states}
        self._at_start = {state.spec.name: state.steps for state in states}
        self._steps = dict(self._at_start)
        self._num_ended = sum(state.is_finished for state in states)
        if self._num_ended:
            say(f"{self._num_ended} of {len(states)} runs are finished already")

    def started(self, name: str, steps: int, log: Path) -> None:
        """A run was started, from a checkpoint if `steps` is not 0."""
        origin = f" from step {steps}" if steps else ""
        self._say(f"{name}: starts{origin}, output in {log}")

    def step(self, name: str, step: int) -> None:
        """A run has done an iteration; now and then that is worth a line."""
        with self._lock:
            self._steps[name] = step
            now = self._clock()
            if now - self._said_at >= _PAUSE_S:
                self._said_at = now
                self._say(self._line(name))

    def ended(self, name: str, code: int) -> None:
        """A run ended with an exit code."""
        with self._lock:
            self._num_ended += 1
            if code == 0:
                self._steps[name] = self._max_steps[name]
            self._said_at = self._clock()
            outcome = "finished" if code == 0 else f"ended with exit code {code}"
            self._say(f"{name}: {outcome}. {self._overall()}")

    def seconds_left(self) -> float | None:
        """Of the whole study; `None` before the first iteration."""
        done = sum(self._steps[name] - self._at_start[name] for name in self._steps)
        if done <= 0:
            return None
        to_come = sum(max(0, self._max_steps[name] - self._steps[name]) for name in self._steps)
        return (self._clock() - self._started_at) / done * to_come

    def _line(self, name: str) -> str:
        return f"{name}: step {self._steps[name]}/{self._max_steps[name]}. {self._overall()}"

    def _overall(self) -> str:
        left = self.seconds_left()
        text = f"{self._num_ended} of {len(self._steps)} runs done"
        return text if left is None else f"{text}, about {clock_text(left)} left"


def clock_text(seconds: float) -> str:
    """Hours and minutes, such as `3 h 05 min`; minutes alone below an hour."""
    minutes = max(0, round(seconds / 60))
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
