"""The run report in a real browser: curves, pool, sampling, time; clicks and keys."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chromium import ReportBrowser, missing, shown
from recorded_run import RUN_SIZE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


def test_the_first_view_has_figures_and_curves(page: ReportBrowser) -> None:
    assert page.driver.title == "arise, run"
    assert "finished, step 8 of 8" in page.text("#state")
    figures = [element.text for element in page.all(".figure")]
    assert figures[0].split("\n") == ["held-out pass rate", "45.5 %", "from 20.0 %, 40 tasks"]
    titles = [element.text for element in page.all("#view-overview .chart h3")]
    assert titles[0] == "Pass rate"
    assert "Entropy" in titles
    page.wait(f"document.querySelectorAll('.chart svg path.line').length >= {len(titles)}")


def test_arrow_keys_read_a_curve(page: ReportBrowser) -> None:
    page.wait("document.querySelector('.chart .plot svg') !== null")
    page.run("document.querySelector('.chart .plot svg').focus()")
    page.press("HOME")
    legend = page.one(".chart .legend").text
    assert "step 0" in legend
    assert "20.0 %" in legend, "the held-out rate before training"
    page.press("END", "ARROW_LEFT")
    assert "step 7" in page.one(".chart .legend").text


def test_tabs_and_number_keys_switch_views(page: ReportBrowser) -> None:
    page.press("3")
    page.wait("!document.getElementById('view-sampling').hidden")
    page.one("#tab-pool").click()
    page.wait("!document.getElementById('view-pool').hidden")
    page.press("ARROW_RIGHT")
    page.wait("!document.getElementById('view-sampling').hidden")
    assert page.run("return document.activeElement.id") == "tab-sampling"
    assert [tab.get_attribute("aria-selected") for tab in page.all("[role=tab]")].count("true") == 1


def test_a_pair_opens_with_texts_and_evidence_that_leads_to_the_trajectory(
    page: ReportBrowser,
) -> None:
    page.go("pool")
    head = page.one(".pair-head")
    head.send_keys(" ")
    page.wait("document.querySelector('.pair-body') !== null")
    assert head.get_attribute("aria-expanded") == "true"
    assert "does not look" in page.text(".texts")
    created = page.one(".events li.created summary")
    created.click()
    page.wait("document.querySelector('.events li.created details').open")
    activated = page.all(".events li.activated summary")
    assert activated
    activated[0].click()
    assert "step 2 shows it" in page.one(".events li.activated .quote").text
    link = page.one(".events li.activated .quote .link")
    step, task, rollout = re.fullmatch(r"step (\d+), (.+), rollout (\d+)", link.text).groups()
    link.click()
    page.wait("document.querySelector('.trajectory-head') !== null")
    assert task in page.text(".trajectory-head h2")
    assert f"rollout {rollout}" in page.text(".trajectory-head h2")
    assert page.text(".trajectory-head p").startswith(f"step {step} ")


def test_bars_of_the_pool_are_as_high_as_the_pass_rates(page: ReportBrowser) -> None:
    page.go("pool")
    page.wait("document.querySelector('.pair-bar .level') !== null")
    texts = [
        int(e.text.removesuffix(" %"))
        for e in page.all(".pair-bar")[0].find_elements("css selector", ".rate")
    ]
    heights = page.run(
        "return [...document.querySelector('.pair-bar').querySelectorAll('.level')]"
        ".map((e) => e.getAttribute('height') / 22)"
    )
    assert texts == [round(100 * height) for height in heights if height > 0]


def test_the_heat_map_counts_the_tasks_and_opens_their_trajectories(
    page: ReportBrowser, slots: list[dict[str, Any]]
) -> None:
    page.go("sampling")
    page.wait("document.querySelector('.heat-frame svg') !== null")
    page.run("document.querySelector('.heat-frame svg').focus()")
    page.press("HOME")
    readout = page.text("#view-sampling .readout")
    tag, tasks = re.match(r"(\w+) at step 1: (\d+) tasks?, ", readout).groups()
    drawn = {slot["task_id"] for slot in slots if slot["step"] == 1 and tag in slot["tags"]}
    assert len(drawn) == int(tasks)
    page.press("ENTER")
    page.wait("!document.getElementById('view-trajectories').hidden")
    assert shown(page) == len(drawn) * RUN_SIZE.rollouts


def test_other_rows_and_cells_of_the_heat_map(page: ReportBrowser) -> None:
    page.go("sampling")
    page.one("[data-value=capability]").click()
    # Maps and curves are drawn when their width is known, a frame later.
    labels = "[...document.querySelectorAll('.row-label')].map((e) => e.lastChild.textContent)"
    page.wait(f"{labels}.includes('none (discovery)')")
    page.one("[data-value=capability]").send_keys("\ue014")  # right arrow: the next choice
    page.wait(f"{labels}.includes('discovery')")
    assert set(page.run(f"return {labels}")) <= {"adaptive", "discovery"}
    page.one("[data-value=rate]").click()
    assert "Pass rate by why drawn" in page.text("#view-sampling .caption")


def test_time_and_cost_add_up(page: ReportBrowser) -> None:
    page.go("time")
    rows = [
        element.text
        for element in page.all("#view-time .numbers")[0].find_elements("css selector", "tbody tr")
    ]
    assert rows == [
        "rollout 56.0 s 70.0 % 7.00 s",
        "train 16.0 s 20.0 % 2.00 s",
        "sync 4.00 s 5.0 % 0.50 s",
        "other 4.00 s 5.0 % 0.50 s",
        "all 1 min 20 s 100.0 % 10.0 s",
    ]
    assert "judge prompt tokens 8,000" in page.one("#view-time").text
