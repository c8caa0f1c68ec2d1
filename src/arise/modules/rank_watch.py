"""The processes of a run watch over each other, by signs of life in the process group's store.

A collective call cannot tell a rank that is dead from one that is slow, and some of them wait for
hours: the ranks besides 0 have nothing to do while rank 0 plays the episodes. So they wait for a
key of the store instead (`meet`), and a thread of each process gives signs of life and looks at
those of the others: rank 0 at all, the others at rank 0.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from torch import distributed
from torch.distributed import distributed_c10d

from arise.errors import ConfigError, RankError
from arise.modules.vital_signs import OwnSigns, Sign

_POLL_S = 0.1
_END_KEY = "arise/end"
_STOP_KEY = "arise/stop"
_INTERRUPT = "interrupt"
_FAREWELL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How soon a rank's death is noticed.

    Attributes:
        interval_s: Seconds between two signs of life.
        timeout_s: Silence that counts as death, in seconds.
        stall_s: Longest that a rank may stay at one point of a phase that all ranks go through
            together, in seconds.

    Raises:
        ConfigError: A number is not above 0, or signs are rarer than the silence allowed.
    """

    interval_s: float
    timeout_s: float
    stall_s: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("interval_s", "timeout_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"callbacks.watch.{name} = {getattr(self, name)} must be above 0")
        if self.timeout_s < 2 * self.interval_s:
            raise ConfigError(
                f"callbacks.watch.timeout_s = {self.timeout_s:g} must be at least twice "
                f"callbacks.watch.interval_s = {self.interval_s:g}"
            )


class Child(Protocol):
    """A process that this one has started, such as `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code; `None` while it runs."""

    def kill(self) -> None:
        """End it."""


class RankWatch:
    """One rank's part in the watch; with a single process it does nothing.

    Args:
        options: How soon a death is noticed.
        on_end: Called with one sentence in the watching thread when a rank is dead or stands
            still, before this process ends.
    """

    def __init__(self, options: WatchOptions, *, on_end: Callable[[str], None]) -> None:
        self._options = options
        self._on_end = on_end
        self._signs = OwnSigns()
        self._num_meetings = 0
        self._rank = 0
        self._num_ranks = 1
        self._store: Any = None
        self._thread_store: Any = None
        self._children: list[Child] = []
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._is_leaving = False
        self._last: dict[int, tuple[Sign, float]] = {}

    def start(self, children: Sequence[Child] = ()) -> None:
        """Begin, once the process group is there.

        Args:
            children: The ranks that this process has started.
        """
        if not distributed.is_initialized() or distributed.get_world_size() == 1:
            return
        self._rank, self._num_ranks = distributed.get_rank(), distributed.get_world_size()
        self._children = list(children)
        # A store serves one caller at a time: the main thread waits on one of its own.
        limit = timedelta(seconds=self._options.timeout_s)
        shared: Any = distributed_c10d._get_default_store()
        self._store, self._thread_store = shared.clone(), shared.clone()
        for store in (self._store, self._thread_store):
            store.set_timeout(limit)
        self._give_sign()
        self._thread = threading.Thread(target=self._watch, name="arise-watch", daemon=True)
        self._thread.start()

    def enter(self, phase: str, iteration: int, *, is_bounded: bool = False) -> None:
        """Say what this rank does from now on.

        Args:
            phase: In words that fit before "of iteration 7".
            iteration: Counted from 0.
            is_bounded: Whether all ranks go through it together.
        """
        self._signs.enter(phase, iteration, is_bounded=is_bounded)

    def advance(self) -> None:
        """Say that this rank came a step further inside its phase."""
        self._signs.advance()

    def meet(self) -> None:
        """Wait until rank 0 is here too, however long it takes; rank 0 does not wait.

        Every rank has to call it equally often. To be called before a collective call for which
        rank 0 may be late.

        Raises:
            RankError: Rank 0 has failed and says why.
            KeyboardInterrupt: Rank 0 was interrupted.
        """
        if self._thread is None:
            return
        self._num_meetings += 1
        key = f"arise/meet/{self._num_meetings}"
        if self._rank == 0:
            self._store.set(key, "here")
            return
        while not self._asked(lambda: self._store.check([key])):
            if self._asked(lambda: self._store.check([_STOP_KEY])):
                reason = self._store.get(_STOP_KEY).decode()
                if reason == _INTERRUPT:
                    raise KeyboardInterrupt
                raise RankError(f"the run ends because rank 0 failed: {reason}")
            time.sleep(_POLL_S)

    def _asked(self, question: Callable[[], bool]) -> bool:
        """An answer of the store; without one the watching thread decides what that means."""
        try:
            return question()
        except RuntimeError:
            time.sleep(self._options.timeout_s + 2 * self._options.interval_s)
            raise

    def leave(self, reason: BaseException) -> None:
        """This rank failed or was interrupted: it looks at the others no more.

        Those that wait for rank 0, or will, are told why.

        Args:
            reason: What it failed with.
        """
        if self._thread is None:
            return
        self._is_leaving = True
        if self._rank != 0:
            return
        is_failure = isinstance(reason, Exception)
        with contextlib.suppress(RuntimeError):
            self._store.set(_STOP_KEY, str(reason) if is_failure else _INTERRUPT)

    def explain(self, error: BaseException) -> RankError | None:
        """What a collective call's failure means, once it is known whether a rank is dead.

        If one is, this process ends here with a sentence on it.

        Returns:
            The error with phase and iteration; `None` if it comes from something else.
        """
        if self._thread is None or not _is_collective(error):
            return None
        self._thread.join(self._options.timeout_s + 3 * self._options.interval_s)
        text = " ".join(str(error).split())
        return RankError(
            f"rank {self._rank}: a collective call failed in the {self._signs.next().place}: {text}"
        )

    def stop(self) -> None:
        """Stop watching: the run ends in an orderly way; safe to repeat."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._signs.end()
        self._stopped.set()
        thread.join()

    def _watch(self) -> None:
        """Give signs and look at the others' until it is over."""
        while not self._stopped.wait(self._options.interval_s):
            try:
                self._give_sign()
                problem = self._problem()
            except RuntimeError as error:
                problem = self._lost_store(error)
            if problem:
                self._end(problem)
                return
        with contextlib.suppress(RuntimeError):
            self._give_sign()

    def _give_sign(self) -> None:
        self._thread_store.set(f"arise/sign/{self._rank}", self._signs.next().write())

    def _problem(self) -> str:
        """One sentence on what is wrong; empty while all is well."""
        if self._is_leaving:
            return ""
        if self._thread_store.check([_END_KEY]):
            return self._thread_store.get(_END_KEY).decode()
        others = range(1, self._num_ranks) if self._rank == 0 else (0,)
        for child in self._children:
            code = child.poll()
            if code:
                return self._lost(self._rank_of(child.pid), _how_it_ended(code))
        for rank in others:
            problem = self._look_at(rank)
            if problem:
                return problem
        return ""

    def _rank_of(self, pid: int) -> int:
        known = (rank for rank, (sign, _) in self._last.items() if sign.pid == pid)
        return next(known, -1)

    def _look_at(self, rank: int) -> str:
        key, now = f"arise/sign/{rank}", time.monotonic()
        if not self._thread_store.check([key]):
            return ""
        sign = Sign.read(self._thread_store.get(key))
        last, since = self._last.get(rank, (None, now))
        if last is None or last.count != sign.count:
            since = now
        self._last[rank] = (sign, since)
        if sign.is_ending:
            return ""
        if sign.is_gone():
            return self._lost(rank, "is gone")
        if now - since > self._options.timeout_s:
            limit = f"callbacks.watch.timeout_s = {self._options.timeout_s:g}"
            return self._lost(rank, f"has given no sign of life for {now - since:.0f} s ({limit})")
        return self._standing_still(rank, sign)

    def _standing_still(self, rank: int, sign: Sign) -> str:
        """Rank 0 alone decides, from its own place too."""
        own = self._signs.next()
        slowest = max((own, sign), key=lambda each: each.still_s if each.is_bounded else -1.0)
        if self._rank or not slowest.is_bounded or slowest.still_s <= self._options.stall_s:
            return ""
        return (
            f"the ranks have not come further for {slowest.still_s:.0f} s "
            f"(callbacks.watch.stall_s = {self._options.stall_s:g}): rank 0 is in the {own.place}, "
            f"rank {rank} ({sign.process}) in the {sign.place}"
        )

    def _lost(self, rank: int, what: str) -> str:
        if rank not in self._last:
            return f"a process of this run {what} while it was starting"
        sign, _ = self._last[rank]
        return f"rank {rank} ({sign.process}) {what}; it was in the {sign.place}"

    def _lost_store(self, error: RuntimeError) -> str:
        """Rank 0 keeps the store, unless the launcher does; at the end of a run that is no loss."""
        if self._stopped.wait(2 * self._options.interval_s):
            return ""
        seen = self._last.get(0)
        if seen is not None and seen[0].is_ending:
            return ""
        if seen is not None and self._rank:
            return self._lost(0, "cannot be reached any more")
        return f"rank {self._rank} has lost the store of the process group: {error}"

    def _end(self, problem: str) -> None:
        """End this process: its main thread may wait for ever in a collective call."""
        with contextlib.suppress(RuntimeError):
            self._thread_store.set(_END_KEY, problem)
        # The lowest rank that lives tells it.
        if self._rank == 0 or (self._rank == 1 and problem.startswith("rank 0")):
            with contextlib.suppress(Exception):
                self._on_end(problem)
        sys.stderr.flush()
        if self._rank == 0:
            time.sleep(_FAREWELL_S)  # the store is here: let the others read why
        for child in self._children:
            with contextlib.suppress(OSError):
                child.kill()
        os._exit(1)


def _how_it_ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _is_collective(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and any(name in text for name in ("gloo", "NCCL", "Gloo"))
    )
