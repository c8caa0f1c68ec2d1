"""How many calls to an endpoint may still be made."""

from __future__ import annotations


class CallBudget:
    """Counts calls to an endpoint, retries included, up to a limit.

    Args:
        max_calls: Most calls until `restart`; `None` only counts.

    Attributes:
        num_taken: Calls since the last `restart`.

    Example:
        >>> budget = CallBudget(1)
        >>> budget.take(), budget.take(), budget.num_taken
        (True, False, 1)
    """

    def __init__(self, max_calls: int | None = None) -> None:
        self._max_calls = max_calls
        self.num_taken = 0

    def take(self) -> bool:
        """Take one call; `False`, and nothing taken, if none is left."""
        if self._max_calls is not None and self.num_taken >= self._max_calls:
            return False
        self.num_taken += 1
        return True

    def restart(self) -> None:
        """All calls are there again."""
        self.num_taken = 0
