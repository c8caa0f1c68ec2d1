"""Figures and files of an evaluation, by hand."""

import csv
import json
from pathlib import Path

import pytest

from arise.errors import ConfigError
from arise.evaluation.attempts import Attempt, AttemptLog
from arise.evaluation.report import as_json, as_markdown, make_report, write_report


def attempts() -> list[Attempt]:
    """Run 1: 2 of 4, run 2: 1 of 4, run 3: 3 of 4; one attempt of run 2 erred."""
    solved = {"a": (1, 0, 1), "b": (1, 1, 1), "c": (0, 0, 1), "d": (0, None, 0)}
    return [
        Attempt(
            task_id=task,
            attempt=number,
            domain="office" if task in "ab" else "science",
            reward=None if value is None else float(value),
            error="sandbox" if value is None else "",
            message="died | of\nmemory" if value is None else "",
            finish_reason="" if value is None else "submitted",
            prompt_tokens=100,
            completion_tokens=10,
            seconds=1.5,
        )
        for task, values in solved.items()
        for number, value in enumerate(values)
    ]


def test_rates_by_run_and_domain_and_with_and_without_errors() -> None:
    report = make_report("m (h)", attempts(), num_attempts=3)
    assert report.rate.runs_percent == (50.0, 25.0, 75.0)
    assert (report.rate.percent, report.rate.run_std) == (50.0, 25.0)
    assert {name: rate.percent for name, rate in report.domains.items()} == {
        "office": pytest.approx(500 / 6),
        "science": pytest.approx(100 / 6),
    }
    assert report.without_errors == pytest.approx(600 / 11)
    assert report.errors == {"sandbox": 1}
    assert report.totals["completion_tokens"] == 120.0
    assert report.totals["seconds"] == 18.0


def test_a_reward_below_one_is_not_passed() -> None:
    assert Attempt(task_id="a", attempt=0, reward=0.999).outcome is False
    assert Attempt(task_id="a", attempt=0, reward=1.0).outcome is True
    assert Attempt(task_id="a", attempt=0, error="harness").outcome is None


def test_the_tables_have_the_papers_layout(tmp_path: Path) -> None:
    report = make_report("m (h)", attempts(), num_attempts=3)
    text = as_markdown(report)
    assert "| Model | Run 1 | Run 2 | Run 3 | Mean ± Std |\n| --- | --- |" in text
    assert "| m (h) | 50.0 | 25.0 | 75.0 | 50.0 ± 25.0 |" in text
    assert "| Model | office | science | Overall |" in text
    assert "| m (h) | 83.3 | 16.7 | 50.0 |" in text
    assert "12 attempts, 1 erred and count as not passed; without them: 54.5 %" in text
    assert "| d | 2 | sandbox | died \\| of memory |" in text
    write_report(report, attempts(), tmp_path)
    assert (tmp_path / "report.md").read_text() == text
    assert json.loads((tmp_path / "report.json").read_text()) == as_json(report)
    with (tmp_path / "attempts.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert (lines[10]["task_id"], lines[10]["error"], lines[10]["reward"]) == ("d", "sandbox", "")


def test_attempts_survive_a_torn_line_and_are_kept_apart_by_settings(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path, {"seed": 1}, resume=True)
    for attempt in attempts():
        log.add(attempt)
    with (tmp_path / "attempts.jsonl").open("a") as file:
        file.write('{"task_id": "torn"')
    again = AttemptLog(tmp_path, {"seed": 1}, resume=True)
    assert list(again.attempts.values()) == attempts()
    again.add(Attempt(task_id="new", attempt=0, reward=1.0))
    again.forget_errors()
    last = AttemptLog(tmp_path, {"seed": 1}, resume=True)
    assert len(last.attempts) == 12
    assert ("d", 1) not in last.attempts
    with pytest.raises(ConfigError, match="seed = 1, now it is 2"):
        AttemptLog(tmp_path, {"seed": 2}, resume=True)
    with pytest.raises(ConfigError, match="resume=false"):
        AttemptLog(tmp_path, {"seed": 1}, resume=False)
