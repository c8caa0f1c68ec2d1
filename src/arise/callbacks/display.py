"""What a person sees while a run goes on: a calm panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from arise.agents.orchestrator import Orchestrator
from arise.callbacks.asynchronous import AsynchronousRollouts
from arise.types import Iteration

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=*#"
_BAR_WIDTH = 32
_LEAST_BAR = 8
_REST_WIDTH = 66
_REFRESH_PER_S = 4


@dataclass(slots=True, kw_only=True)
class RunState:
    """What is known of a run; filled by the progress callbacks.

    Attributes:
        max_steps: Iterations of the whole run.
        step: Iterations done, those before a resume included.
        phase: What happens now, in words.
        phase_started: Clock reading at its start, seconds.
        started: Clock reading at the start of this process's training, seconds.
        last_ended: Clock reading at the end of the newest iteration, seconds.
        left_s: Seconds that the rest takes, estimated at `last_ended`; `None` till one iteration
            is done.
        history: Metrics of the iterations of this process, oldest first.
        num_lost: Rollouts that the newest iteration lost to infrastructure.
    """

    max_steps: int
    step: int = 0
    phase: str = "starting"
    phase_started: float = 0.0
    started: float = 0.0
    last_ended: float = 0.0
    left_s: float | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    num_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """How far a set of episodes is.

    Attributes:
        what: `rollouts`, `evaluation`, or what else is counted.
        num_done: Those that ended, lost ones included.
        num_all: B · G in a training step; more than 0.
    """

    what: str
    num_done: int
    num_all: int


class Display(Protocol):
    """Shows a run's state; both kinds are safe to close twice."""

    def open(self, state: RunState) -> None:
        """Begin to show it; later changes of `state` are seen."""

    def iteration(self, state: RunState, iteration: Iteration) -> None:
        """An iteration is done, and `state` knows it."""

    def close(self) -> None:
        """Leave what is shown as it is."""


class PlainDisplay:
    """One line an iteration, for files and pipes."""

    def open(self, state: RunState) -> None:
        """Nothing to prepare."""

    def iteration(self, state: RunState, iteration: Iteration) -> None:
        """Print the line."""
        line = progress_line(iteration, state.step, state.max_steps, state.left_s or 0.0)
        print(line, flush=True)

    def close(self) -> None:
        """Nothing to end."""


class TerminalDisplay:
    """A panel that stays at the bottom; whatever is printed or logged scrolls above it.

    Args:
        playing: How far the episodes are, asked whenever the panel is drawn.
        console: The terminal; the standard output by default.
        clock: Seconds, of the same clock as the state's.
    """

    def __init__(
        self,
        playing: Callable[[], Playing | None],
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._playing = playing
        self._console = console or Console()
        self._clock = clock
        self._state: RunState | None = None
        self._live: Live | None = None

    def open(self, state: RunState) -> None:
        """Draw the panel, a few times a second from now on."""
        self._state = state
        if self._live is None:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                refresh_per_second=_REFRESH_PER_S,
            )
            self._live.start(refresh=True)

    def iteration(self, state: RunState, iteration: Iteration) -> None:
        """Draw it at once: an iteration may be shorter than the pause between two drawings."""
        if self._live is not None:
            self._live.refresh()

    def close(self) -> None:
        """The last panel stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _render(self) -> RenderableType:
        if self._state is None:
            return Text()
        return panel(
            self._state,
            self._playing(),
            now=self._clock(),
            width=self._console.width,
            is_ascii=self._console.options.ascii_only,
        )


def playing_of(
    orchestrator: Orchestrator, asynchronous: AsynchronousRollouts | None
) -> Playing | None:
    """What is played now, or was played last; `None` if nothing ever was.

    Args:
        orchestrator: Plays the rollouts of a step, and held-out evaluation.
        asynchronous: Plays groups all the time, if the run is asynchronous.
    """
    is_training = orchestrator.purpose != "evaluate"
    is_over = orchestrator.num_finished >= orchestrator.num_planned
    if asynchronous is not None and (is_training or is_over):
        num_ready, num_wanted = asynchronous.ready
        return Playing(what="groups ready", num_done=num_ready, num_all=num_wanted)
    if orchestrator.num_planned == 0:
        return None
    return Playing(
        what="rollouts" if is_training else "evaluation",
        num_done=orchestrator.num_finished,
        num_all=orchestrator.num_planned,
    )


def make_display(playing: Callable[[], Playing | None], *, quiet: bool) -> Display | None:
    """The display for this process's standard output; `None` if it is to be quiet.

    Args:
        playing: See `TerminalDisplay`.
        quiet: The run's `quiet`.
    """
    if quiet:
        return None
    console = Console()
    # FORCE_COLOR colours a file; a panel that redraws itself needs a real terminal.
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return TerminalDisplay(playing, console=console)
    return PlainDisplay()


def panel(
    state: RunState, playing: Playing | None, *, now: float, width: int, is_ascii: bool = False
) -> RenderableType:
    """The panel at one moment.

    Args:
        state: The run's.
        playing: Of the episodes.
        now: Clock reading, seconds.
        width: Columns of the terminal; a narrow one gets short bars and no remarks.
        is_ascii: Draw curves without block characters.
    """
    elapsed = f"{clock(now - state.started)} so far"
    if state.left_s is not None:
        elapsed += f", {clock(max(0.0, state.left_s - (now - state.last_ended)))} left"
    rows = _Rows(width)
    rows.bar("iteration", state.step, state.max_steps, elapsed)
    if playing is not None:
        lost = f"{state.num_lost} lost in the last iteration" if state.num_lost else ""
        rows.bar(playing.what, playing.num_done, playing.num_all, lost)
    last = state.history[-1] if state.history else {}
    share = last.get("reward/all_fail_group_share")
    hopeless = "" if share is None else f"no rollout passes in {share:.0%} of the groups"
    for label, key, remark in (
        ("pass rate", "reward/pass_rate", hopeless),
        ("rubric reward", "rubric/mean_reward", ""),
    ):
        values = [metrics[key] for metrics in state.history if key in metrics]
        if values:
            rows.curve(label, values, remark, is_ascii=is_ascii)
    if "pool/size" in last:
        shown = f"{last.get('pool/active_skills', 0.0):.0f} with their skill shown"
        rows.add("pool", f"{last['pool/size']:.0f}", Text(), shown)
    seconds = int(now - state.phase_started)
    doing = Text.assemble(("now  ", "dim"), state.phase, (f", {seconds} s", "dim"))
    return Group("", rows.grid, doing)


class _Rows:
    """The panel's table: label, number, bar or curve, remark."""

    def __init__(self, width: int) -> None:
        self._bar_width = max(_LEAST_BAR, min(_BAR_WIDTH, width - _REST_WIDTH))
        self._has_remarks = width >= _REST_WIDTH + _LEAST_BAR
        self.grid = Table.grid(padding=(0, 2, 0, 0))
        self.grid.add_column(style="dim", no_wrap=True)
        self.grid.add_column(justify="right", style="bold", no_wrap=True)
        self.grid.add_column(width=self._bar_width)
        if self._has_remarks:
            self.grid.add_column(style="dim", no_wrap=True, overflow="ellipsis")

    def add(self, label: str, number: str, drawn: RenderableType, remark: str) -> None:
        self.grid.add_row(label, number, drawn, *([remark] if self._has_remarks else []))

    def bar(self, label: str, done: int, whole: int, remark: str) -> None:
        bar = ProgressBar(
            total=max(1, whole),
            completed=done,
            width=self._bar_width,
            complete_style="cyan",
            finished_style="cyan",
        )
        self.add(label, f"{done}/{whole}", bar, remark)

    def curve(self, label: str, values: Sequence[float], remark: str, *, is_ascii: bool) -> None:
        drawn = sparkline(values, is_ascii=is_ascii, width=self._bar_width)
        self.add(label, f"{values[-1]:.1%}", Text(drawn, style="cyan"), remark)


def sparkline(values: Sequence[float], *, is_ascii: bool = False, width: int = _BAR_WIDTH) -> str:
    """The newest `width` shares as one character each, 0 lowest and 1 highest.

    Args:
        values: Between 0 and 1.
        is_ascii: Without block characters.
        width: Most characters.

    Example:
        >>> sparkline([0.0, 0.5, 1.0])
        '▁▅█'
    """
    levels = _ASCII_BLOCKS if is_ascii else _BLOCKS
    top = len(levels) - 1
    return "".join(levels[int(min(1.0, max(0.0, v)) * top + 0.5)] for v in values[-width:])


def progress_line(iteration: Iteration, step: int, max_steps: int, left_s: float) -> str:
    """The line for one finished iteration."""
    parts = [f"step {step:>{len(str(max_steps))}}/{max_steps}"]
    for name, key in (
        ("pass", "reward/pass_rate"),
        ("rubric", "rubric/mean_reward"),
        ("all-fail", "reward/all_fail_group_share"),
    ):
        if key in iteration.metrics:
            parts.append(f"{name} {iteration.metrics[key]:5.1%}")
    if "pool/size" in iteration.metrics:
        active = iteration.metrics.get("pool/active_skills", 0.0)
        parts.append(f"pool {iteration.metrics['pool/size']:.0f} ({active:.0f} on)")
    lost = sum(len(group.failures) for group in iteration.groups)
    if lost:
        parts.append(f"lost {lost}")
    parts.append(f"{iteration.durations_s.get('iteration', 0.0):.1f} s")
    parts.append(f"left {clock(left_s)}")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as `1:02:03` or `2:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
