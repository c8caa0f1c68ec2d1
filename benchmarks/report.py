"""How long a run's report takes to write and to open.

Run: `python benchmarks/report.py` (150 iterations of 256 trajectories, as in the paper; minutes on
two cores), or smaller with `--steps 30`. The run's folder is synthetic, written by the writers of
real runs. The report is opened from its file in headless Chromium, a fresh browser each time: from
the start of the navigation until the page has drawn its first view and answers, and from there to
the last trajectory of the table shown. Exits with 1 if opening takes over 3 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from arise.runs.report.build import write_report
from chromium import ReportBrowser
from recorded_run import RunSize, write_run

LIMIT_S = 3.0
MAX_MB = 400.0
"""Twice the default, so that nothing is shortened."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=60, help="generated tokens of a turn")
    options = parser.parse_args()
    size = RunSize(
        steps=options.steps,
        tasks=32,
        rollouts=8,
        turns=options.turns,
        tokens=options.tokens,
        pairs=40,
    )
    with tempfile.TemporaryDirectory() as scratch:
        run = write_run(Path(scratch) / "arise" / "run", size)
        records = sum(path.stat().st_size for path in (run / "trajectories").iterdir())
        started = time.perf_counter()
        written = write_report(run, run / "report.html", max_mb=MAX_MB)
        built_s = time.perf_counter() - started
        opened, shown = [], []
        for _ in range(options.tries):
            with ReportBrowser() as browser:
                opened.append(browser.open(run / "report.html"))
                started = time.perf_counter()
                browser.go("trajectories")
                browser.run("document.querySelector('.scroller').focus()")
                browser.press("END")
                browser.wait("document.querySelector('.trajectory-head') !== null")
                shown.append(time.perf_counter() - started)
    print(
        f"{written.num_trajectories} trajectories in {written.num_steps} iterations: records "
        f"{records / 1e6:.0f} MB, report {written.num_bytes / 1e6:.0f} MB, "
        f"{written.num_cut} shortened, written in {built_s:.0f} s"
    )
    print(
        f"opens in {statistics.median(opened):.2f} s (worst {max(opened):.2f} s, limit {LIMIT_S} s)"
    )
    print(f"last trajectory shown {statistics.median(shown):.2f} s after that")
    return int(statistics.median(opened) > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
