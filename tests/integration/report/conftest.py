"""A run, its report and one browser for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arise.runs.evidence import read_step
from arise.runs.report.build import write_report
from chromium import ReportBrowser
from recorded_run import RUN_SIZE, write_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("runs") / "arise" / "run", RUN_SIZE)
    write_report(run, run / "report.html", max_mb=50.0)
    return run


@pytest.fixture(scope="session")
def slots(run: Path) -> list[dict[str, Any]]:
    """All records, each with its step."""
    return [{**slot, "step": step} for step in range(1, 9) for slot in read_step(run, step)]


@pytest.fixture(scope="session")
def browser() -> Iterator[ReportBrowser]:
    with ReportBrowser() as browser:
        yield browser


@pytest.fixture
def page(browser: ReportBrowser, run: Path) -> Iterator[ReportBrowser]:
    """The report, freshly opened; nothing may be complained about on the console."""
    browser.resize(1400, 950)
    browser.prefer("light")
    browser.driver.get("about:blank")
    browser.messages()
    browser.open(run / "report.html")
    yield browser
    assert browser.messages() == []
