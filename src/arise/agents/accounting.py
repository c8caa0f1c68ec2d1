"""Where every group of rollouts went: started = trained + dropped + failed + in flight, always."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from arise.errors import AccountingError


class GroupAccount:
    """Counts the groups of a run, each opened once and closed once.

    Attributes:
        num_started: Groups that were admitted.
        num_trained: Groups with a survivor that an optimizer step was made on.
        dropped: Groups that were given up, by reason; their tasks may be drawn again.
        failed: Groups that lost every rollout to infrastructure, by reason.

    Example:
        >>> account = GroupAccount()
        >>> account.start(0), account.start(1), account.drop(0, "too_old"), account.train(1)
        (None, None, None, None)
        >>> account.require([])
        >>> account.num_started, account.num_trained, dict(account.dropped)
        (2, 1, {'too_old': 1})
    """

    def __init__(self) -> None:
        self.num_started = 0
        self.num_trained = 0
        self.dropped: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._open: set[int] = set()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Serial numbers of the groups that are neither trained, dropped nor failed; ascending."""
        return tuple(sorted(self._open))

    def start(self, serial: int) -> None:
        """A group is admitted.

        Raises:
            AccountingError: It is in flight already.
        """
        if serial in self._open:
            raise AccountingError(f"group {serial} was started twice")
        self._open.add(serial)
        self.num_started += 1

    def train(self, serial: int) -> None:
        """A group's optimizer step is done.

        Raises:
            AccountingError: It is not in flight.
        """
        self._close(serial, "trained")
        self.num_trained += 1

    def drop(self, serial: int, reason: str) -> None:
        """A group is given up.

        Raises:
            AccountingError: It is not in flight.
        """
        self._close(serial, "dropped")
        self.dropped[reason] += 1

    def fail(self, serial: int, reason: str) -> None:
        """A group has no survivor.

        Raises:
            AccountingError: It is not in flight.
        """
        self._close(serial, "failed")
        self.failed[reason] += 1

    def require(self, held: Collection[int]) -> None:
        """Compare the books with what is there.

        Args:
            held: Serial numbers of the groups that somebody holds: waiting, running, finished or
                in training.

        Raises:
            AccountingError: A group is held that is not in flight, or is in flight and held by
                nobody, or the sum is not the number of groups that were started.
        """
        lost = sorted(self._open - set(held))
        unknown = sorted(set(held) - self._open)
        closed = self.num_trained + self.dropped.total() + self.failed.total()
        total = closed + len(self._open)
        if lost or unknown or total != self.num_started or len(held) != len(self._open):
            raise AccountingError(
                f"the account of rollout groups does not add up: {self.num_started} started, "
                f"{self.num_trained} trained, {self.dropped.total()} dropped, "
                f"{self.failed.total()} failed, {len(self._open)} in flight; in flight but held by "
                f"nobody: {lost}; held but not in flight: {unknown}. This is a fault of the "
                "program: please report it; the newest checkpoint is from before"
            )

    def state_dict(self) -> dict[str, Any]:
        """Primitives only."""
        return {
            "num_started": self.num_started,
            "num_trained": self.num_trained,
            "dropped": dict(self.dropped),
            "failed": dict(self.failed),
            "in_flight": self.in_flight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.num_started = int(state["num_started"])
        self.num_trained = int(state["num_trained"])
        self.dropped = Counter(state["dropped"])
        self.failed = Counter(state["failed"])
        self._open = set(state["in_flight"])

    def _close(self, serial: int, what: str) -> None:
        if serial not in self._open:
            raise AccountingError(f"group {serial} is {what} but is not in flight")
        self._open.remove(serial)
