"""The run report in a real browser: filters, table, one trajectory with its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from chromium import ReportBrowser, missing, shown
from recorded_run import RUN_SIZE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


def choose(page: ReportBrowser, name: str, value: str) -> None:
    """Choose in one of the filters as a user does; `value` of an option, or text to type."""
    control = page.one(f".filters [name={name}]")
    if control.tag_name == "select":
        page.one(f".filters [name={name}] option[value='{value}']").click()
    else:
        control.clear()
        control.send_keys(value)


def _outcome(pair: int, slot: dict[str, Any]) -> str | None:
    review = slot.get("review") or {"judged_pair_ids": [], "verdicts": []}
    if pair not in review["judged_pair_ids"]:
        return None
    found = {verdict["pair_id"]: verdict["outcome"] for verdict in review["verdicts"]}
    return found.get(pair, "invalid")


FILTERS: list[tuple[dict[str, str], Callable[[dict[str, Any]], bool]]] = [
    ({"task": "task-1"}, lambda s: "task-1" in s["task_id"]),
    ({"tag": "csv"}, lambda s: "csv" in s["tags"]),
    ({"from": "3", "to": "5"}, lambda s: 3 <= s["step"] <= 5),
    ({"status": "lost"}, lambda s: "failure" in s),
    ({"status": "passed"}, lambda s: s.get("task_reward") == 1.0),
    ({"status": "turn_limit"}, lambda s: s.get("finish_reason") == "turn_limit"),
    ({"pair": "1"}, lambda s: _outcome(1, s) is not None),
    ({"pair": "2", "verdict": "f"}, lambda s: _outcome(2, s) == "fail"),
    ({"pair": "1", "verdict": "i"}, lambda s: _outcome(1, s) == "invalid"),
    (
        {"status": "failed", "pair": "1", "verdict": "p", "from": "4"},
        lambda s: s["step"] >= 4 and s.get("task_reward") == 0.0 and _outcome(1, s) == "pass",
    ),
]


@pytest.mark.parametrize(("chosen", "fits"), FILTERS, ids=[str(chosen) for chosen, _ in FILTERS])
def test_filters_keep_what_fits(
    page: ReportBrowser,
    slots: list[dict[str, Any]],
    chosen: dict[str, str],
    fits: Callable[[dict[str, Any]], bool],
) -> None:
    page.go("trajectories")
    for name, value in chosen.items():
        choose(page, name, value)
    expected = sum(map(fits, slots))
    assert 0 < expected < len(slots)
    assert shown(page) == expected
    # The address says it all: opened again, the same trajectories are there.
    address = page.run("return location.hash.slice(1)")
    page.one(".reset").click()
    assert shown(page) == len(slots)
    page.go(address)
    page.wait(f"document.querySelector('.counter').textContent.startsWith('{expected} of')")


def test_no_trajectory_fits(page: ReportBrowser) -> None:
    page.go("trajectories")
    choose(page, "task", "no such task")
    assert shown(page) == 0
    assert "No trajectory fits" in page.one(".detail").text


def test_keys_move_through_the_table(page: ReportBrowser, slots: list[dict[str, Any]]) -> None:
    page.press("/")
    page.wait("document.activeElement.name === 'task'")
    page.run("document.querySelector('.scroller').focus()")
    page.press("END")
    page.wait("document.querySelector('.trajectory-head p')?.textContent.startsWith('step 8 ')")
    row = page.one(".line[aria-selected=true]")
    assert row.get_attribute("aria-rowindex") == str(len(slots))
    page.press("HOME", "ARROW_DOWN")
    number = f"rollout {slots[1]['rollout']}"
    page.wait("document.querySelector('.trajectory-head p').textContent.startsWith('step 1 ')")
    page.wait(f"document.querySelector('.trajectory-head h2').textContent.includes('{number}')")
    selected = page.one(".scroller").get_attribute("aria-activedescendant")
    assert page.run("return document.getElementById(arguments[0]) !== null", selected)


def test_order_by_advantage(page: ReportBrowser, slots: list[dict[str, Any]]) -> None:
    page.go("trajectories")
    choose(page, "sort", "advantage")
    texts = [element.text.replace("−", "-") for element in page.all(".rows .col.adv")]
    values = [float(text) for text in texts if text != "–"]
    assert values == sorted(values, reverse=True)
    best = max(slot["advantage"] for slot in slots if "failure" not in slot)
    assert values[0] == pytest.approx(best, abs=0.005)


def _first_graded(slots: list[dict[str, Any]], step: int) -> dict[str, Any]:
    return next(slot for slot in slots if slot["step"] == step and "failure" not in slot)


def test_a_trajectory_shows_commands_outputs_tokens_and_verdicts(
    page: ReportBrowser, slots: list[dict[str, Any]]
) -> None:
    slot = _first_graded(slots, 8)
    page.go(f"trajectories?at=8/{slot['rollout']}/{slot['task_id']}")
    page.wait("document.querySelector('.turn') !== null")
    assert len(page.all(".turn")) == RUN_SIZE.turns
    turn = slot["turns"][0]
    assert (
        "".join(e.text for e in page.all(".turn")[0].find_elements("css selector", ".output"))
        == turn["observation"]
    )
    rows = [element.text for element in page.all(".verdict-table tbody tr")]
    assert len(rows) == len(slot["review"]["judged_pair_ids"])
    assert any("step 2 shows it" in row for row in rows)
    assert "does not look" in page.one(".diagnostics").text
    assert slot["skills"][0]["text"] in page.one(".skills").text


def test_tokens_are_coloured_by_importance_ratio_then_by_probability(
    page: ReportBrowser, slots: list[dict[str, Any]]
) -> None:
    slot = _first_graded(slots, 3)
    turn = slot["turns"][0]
    page.go(f"trajectories?at=3/{slot['rollout']}/{slot['task_id']}")
    page.wait("document.querySelector('.token') !== null")
    read = (
        "return [...document.querySelector('.turn').querySelectorAll('.token')]"
        ".map((e) => [e.textContent, e.className])"
    )
    tokens = page.run(read)
    assert "".join(text for text, _ in tokens) == turn["text"]
    assert [name for _, name in tokens] == [f"token {_ratio_class(r)}" for r in turn["log_ratios"]]
    page.one("[data-value=probability]").click()
    assert [name for _, name in page.run(read)] == [
        f"token {_probability_class(p)}" for p in turn["logprobs"]
    ]
    page.run(
        "document.querySelector('.turn .token').dispatchEvent(new PointerEvent('pointerenter'))"
    )
    assert f"ω = {math.exp(turn['log_ratios'][0]):.5f}" in page.text(".token-readout")
    page.one("[data-value=text]").click()
    assert page.text(".turn .generated") == turn["text"]


def _ratio_class(log_ratio: float) -> str:
    if not 0.5 < math.exp(log_ratio) < 5.0:
        return "masked"
    level = sum(abs(log_ratio) >= limit for limit in (0.02, 0.1, 0.3))
    return f"r{'-' if log_ratio < 0 else ''}{level}" if level else ""


def _probability_class(logprob: float) -> str:
    level = sum(math.exp(round(logprob, 3)) < limit for limit in (0.9, 0.5, 0.2, 0.05))
    return f"p{level}" if level else ""


def test_a_lost_rollout_says_why(page: ReportBrowser) -> None:
    page.go("trajectories?status=lost")
    page.wait("document.querySelector('.detail .notice') !== null")
    assert page.text(".detail .notice") == "Lost to infrastructure (sandbox): the sandbox died"
