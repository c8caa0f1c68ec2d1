"""A judge that is away: not waited for request by request, and reported when it stays away."""

from __future__ import annotations

from arise.errors import ConfigError, JudgeError

ON_OUTAGE = ("continue", "stop")


class OutageWatch:
    """Notices that a judge gives nothing, within an iteration and over several.

    Within an iteration, `give_up_after` requests in a row without an answer mean that the others
    are not sent: each would cost all its tries and time-outs. The next iteration asks anew.

    An iteration that asked and got nothing usable, no verdict and no findings, is *lost*. From
    `alarm_after` lost ones in a row on there is alarm.

    Args:
        on_outage: What an alarm does: `"continue"` trains on with task advantages, `"stop"` ends
            the run; key `judge.on_outage`.
        give_up_after: Key `judge.give_up_after`.
        alarm_after: Key `judge.alarm_after`.

    Attributes:
        num_lost_iterations: Lost iterations in a row.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> watch = OutageWatch(on_outage="continue", give_up_after=2, alarm_after=1)
        >>> watch.no_answer(), watch.no_answer(), watch.gives_up
        (None, None, True)
        >>> watch.end_iteration(is_usable=False), watch.gives_up, watch.is_alarm
        (None, False, True)
    """

    def __init__(self, *, on_outage: str, give_up_after: int, alarm_after: int) -> None:
        if on_outage not in ON_OUTAGE:
            raise ConfigError(f"judge.on_outage = {on_outage!r} is not one of continue, stop")
        for name, value in (("give_up_after", give_up_after), ("alarm_after", alarm_after)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"judge.{name} must be an integer >= 1, got {value!r}")
        self._on_outage = on_outage
        self._give_up_after = give_up_after
        self._alarm_after = alarm_after
        self._num_unanswered = 0
        self.num_lost_iterations = 0

    @property
    def gives_up(self) -> bool:
        """Whether the rest of this iteration's requests is not worth sending."""
        return self._num_unanswered >= self._give_up_after

    @property
    def is_alarm(self) -> bool:
        """Whether the judge has given nothing for too long."""
        return self.num_lost_iterations >= self._alarm_after

    def answered(self) -> None:
        """A request was answered, whatever with."""
        self._num_unanswered = 0

    def no_answer(self) -> None:
        """A request was not answered."""
        self._num_unanswered += 1

    def end_iteration(self, *, is_usable: bool) -> None:
        """Close an iteration in which the judge was asked.

        Args:
            is_usable: Whether there was a valid verdict or a list of findings.
        """
        self._num_unanswered = 0
        self.num_lost_iterations = 0 if is_usable else self.num_lost_iterations + 1

    def require_judge(self, model: str) -> None:
        """End the run if there is alarm and the configuration says so.

        Raises:
            JudgeError: There is.
        """
        if self.is_alarm and self._on_outage == "stop":
            raise JudgeError(
                f"{self.num_lost_iterations} iterations in a row without anything usable from the "
                f"judge {model} (judge.on_outage=stop, judge.alarm_after={self._alarm_after}). "
                "Once it answers again, go on with ckpt_path=last; judge.on_outage=continue trains "
                "without verdicts meanwhile"
            )
