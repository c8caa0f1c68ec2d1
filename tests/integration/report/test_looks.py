"""The run report in a real browser: themes, widths, hostile texts, a file that was cut off."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from arise.runs.evidence import read_step
from arise.runs.report.build import write_report
from chromium import ReportBrowser, missing
from recorded_run import HOSTILE, RunSize, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


def luminance(color: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, as the web's contrast rules define it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(page: ReportBrowser, selector: str, background: str) -> float:
    color, behind = page.run(
        "return [getComputedStyle(document.querySelector(arguments[0])).color,"
        "getComputedStyle(document.querySelector(arguments[1])).backgroundColor]",
        selector,
        background,
    )
    light, dark = sorted((luminance(color), luminance(behind)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_light_and_dark_are_legible_and_the_button_overrules_the_system(
    page: ReportBrowser,
) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    page.go("trajectories")
    page.wait("document.querySelector('.output') !== null")
    seen = []
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        seen.append(luminance(page.run(paper)))
        for selector, background in (
            ("h1", "body"),
            (".muted", "body"),
            (".col.task", ".table"),
            (".col.ended", ".table"),
            (".output", ".output"),
            (".outcome.failed", ".table"),
            (".choice [aria-checked=true]", ".choice [aria-checked=true]"),
        ):
            assert contrast(page, selector, background) >= 4.5, (scheme, selector)
    assert seen[0] > 0.9
    assert seen[1] < 0.02
    button = page.one("#theme")
    button.click()
    assert button.text == "Theme: light"
    assert luminance(page.run(paper)) > 0.9
    button.click()
    page.prefer("light")
    assert luminance(page.run(paper)) < 0.02
    button.click()


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_sticks_out_at_any_width(page: ReportBrowser, width: int) -> None:
    page.resize(width, 900)
    for view in ("overview", "pool", "sampling", "trajectories", "time"):
        page.go(view)
        page.run(
            "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        assert page.run("return document.documentElement.scrollWidth") <= width, view


def test_hostile_texts_are_shown_and_never_obeyed(browser: ReportBrowser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "arise" / "run", RunSize(steps=8, tasks=2, rollouts=2, text=HOSTILE))
    write_report(run, tmp_path / "hostile.html", max_mb=50.0)
    browser.messages()
    browser.open(tmp_path / "hostile.html")
    for view in ("pool", "sampling", "time", "overview", "trajectories"):
        browser.go(view)
    step, slot = next(
        (step, slot)
        for step in range(1, 9)
        for slot in read_step(run, step)
        if slot.get("skills") and "failure" not in slot
    )
    at = quote(f"{step}/{slot['rollout']}/{slot['task_id']}", safe="")
    browser.go(f"trajectories?at={at}")
    browser.wait("document.querySelector('.skills') !== null")
    browser.one("[data-value=text]").click()
    assert "owned" not in browser.driver.title.partition("document.title")[0]
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.querySelectorAll('body script:not([type])').length") == 1
    tag = "</script><script>document.title='owned'</script><img src=x"
    for selector in (".trajectory-head h2", ".part .text", ".generated", ".output", ".skills"):
        text = browser.text(selector)
        assert tag in text, selector
        assert "⟨ESC⟩[31mred⟨ESC⟩[2J⟨BEL⟩⟨NUL⟩⟨U+202E⟩txt.exe⟨U+2028⟩⟨U+FEFF⟩&lt;{{7*7}}" in text
    everything = browser.run("return document.body.innerText")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e\u2028\ufeff]", everything)
    assert browser.messages() == []


def test_a_file_that_was_cut_off_says_so(browser: ReportBrowser, run: Path, tmp_path: Path) -> None:
    whole = (run / "report.html").read_text(encoding="utf-8")
    (tmp_path / "cut.html").write_text(whole[: whole.index('id="data-step-7"') - 40])
    browser.open(tmp_path / "cut.html")
    browser.go("trajectories?from=8")
    browser.wait("!document.getElementById('problem').hidden")
    assert browser.text("#problem").startswith("This file is incomplete: it has no ")
    browser.messages()
