"""What a person sees: the panel of a terminal, the lines of a pipe, nothing if quiet."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.console import Console

from arise.callbacks.display import (
    PlainDisplay,
    Playing,
    RunState,
    TerminalDisplay,
    clock,
    make_display,
    panel,
    sparkline,
)
from arise.terminal import set_up_logging
from arise.types import Iteration

HISTORY = [
    {"reward/pass_rate": 0.0, "rubric/mean_reward": 0.5, "pool/size": 2.0},
    {
        "reward/pass_rate": 0.5,
        "reward/all_fail_group_share": 0.25,
        "rubric/mean_reward": 0.75,
        "pool/size": 7.0,
        "pool/active_skills": 3.0,
    },
]


def state() -> RunState:
    return RunState(
        max_steps=60,
        step=2,
        phase="learning from them",
        phase_started=98.0,
        started=-25.0,
        last_ended=90.0,
        left_s=400.0,
        history=HISTORY,
        num_lost=2,
    )


def drawn(width: int, *, is_ascii: bool = False) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    playing = Playing(what="rollouts", num_done=37, num_all=64)
    with console.capture() as capture:
        console.print(panel(state(), playing, now=100.0, width=width, is_ascii=is_ascii))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_panel_says_where_the_run_is_and_what_it_does() -> None:
    lines = drawn(120)
    assert lines[0] == ""
    assert lines[1].split() == ["iteration", "2/60", "━" * 1, "2:05", "so", "far,", "6:30", "left"]
    assert lines[2].split()[:2] == ["rollouts", "37/64"]
    assert lines[2].count("━") == int(32 * 37 / 64)
    assert lines[2].endswith("2 lost in the last iteration")
    assert lines[3].split()[:4] == ["pass", "rate", "50.0%", "▁▅"]
    assert lines[3].endswith("no rollout passes in 25% of the groups")
    assert lines[4].split() == ["rubric", "reward", "75.0%", "▅▆"]
    assert lines[5].split()[:2] == ["pool", "7"]
    assert lines[5].endswith("3 with their skill shown")
    assert lines[6] == "now  learning from them, 2 s"
    assert len(lines) == 7


@pytest.mark.parametrize("width", [56, 66, 74, 80, 99, 200])
def test_no_line_is_broken_or_too_long(width: int) -> None:
    lines = drawn(width)
    assert len(lines) == 7
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)


def test_a_terminal_without_block_characters_gets_a_curve_all_the_same() -> None:
    assert drawn(100, is_ascii=True)[3].split()[3] == "_="


def test_curves_keep_the_newest_values_between_0_and_1() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([-1.0, 2.0]) == "▁█"
    assert sparkline([0.0, 0.0, 1.0], width=2) == "▁█"
    assert sparkline([]) == ""


def test_time() -> None:
    assert [clock(s) for s in (0, 65.9, 3725.9)] == ["0:00", "1:05", "1:02:05"]


def test_whatever_is_printed_or_logged_scrolls_above_the_panel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both streams go through the live display, also those of a handler made before it."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    set_up_logging(quiet=False)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    display = TerminalDisplay(lambda: None, console=console, clock=lambda: 100.0)
    display.open(state())
    try:
        print("step 5  R1 created: Look before writing")
        logging.getLogger("arise.test").warning("rollout csv-total/3 lost")
    finally:
        display.close()
        display.close()
    text = screen.getvalue()
    first = text.index("R1 created: Look before writing")
    second = text.index("WARNING arise.test: rollout csv-total/3 lost")
    assert first < second < text.rindex("now  learning from them")
    assert capsys.readouterr() == ("", "")


def test_where_there_is_no_terminal_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    display = make_display(lambda: None, quiet=False)
    assert isinstance(display, PlainDisplay)
    iteration = Iteration(index=1)
    iteration.metrics |= HISTORY[1]
    iteration.durations_s["iteration"] = 8.04
    display.open(state())
    display.iteration(state(), iteration)
    display.close()
    line = "step  2/60  pass 50.0%  rubric 75.0%  all-fail 25.0%  pool 7 (3 on)  8.0 s  left 6:40\n"
    assert capsys.readouterr().out == line


def test_colours_asked_for_do_not_make_a_pipe_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(make_display(lambda: None, quiet=False), PlainDisplay)
    monkeypatch.setattr(sys, "stdout", _Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(lambda: None, quiet=False), PlainDisplay)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_display(lambda: None, quiet=False), TerminalDisplay)
    assert make_display(lambda: None, quiet=True) is None


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
