"""What the report's page is given: blocks, index, details, curves, tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.loggers import CSVLogger

from arise.runs.__main__ import main
from arise.runs.evidence import read_step
from arise.runs.report.chunks import element, pack, unpack
from arise.runs.report.curves import logged_curves, recorded_scalars
from arise.runs.report.details import SHORTEST_CUT, slot_details
from arise.runs.report.index import STATES, Index
from arise.runs.report.vocabulary import token_texts
from recorded_run import HOSTILE, RunSize, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "arise" / "run", RunSize(steps=4))


def slot(**changes: Any) -> dict[str, Any]:
    turn = {
        "prompt_token_ids": [1],
        "token_ids": [3, 4],
        "logprobs": [-0.12345, None],
        "log_ratios": [0.25, None],
        "policy_versions": [6, 6],
        "text": "ls",
        "action": "ls",
        "observation": "",
        "exit_code": None,
        "finish_reason": "stop",
        "starts_row": True,
    }
    review = {
        "judged_pair_ids": [2, 3, 7],
        "verdicts": [
            {"pair_id": 2, "outcome": "pass", "reason": "r"},
            {"pair_id": 7, "outcome": "not_applicable", "reason": ""},
        ],
        "diagnostics": [],
        "error": "",
    }
    return {
        "iteration": 6,
        "task_id": "a",
        "rollout": 1,
        "tags": ["csv"],
        "sampled_by": "uniform",
        "sampled_tag": None,
        "sampled_capability": None,
        "sampled_numbers": {},
        "instruction": "go",
        "finish_reason": "turn_limit",
        "task_reward": 0.5,
        "num_generated_tokens": 2,
        "skills": [],
        "turns": [turn],
        "review": review,
        "durations_s": {"agent": 1.25, "verify": 0.5},
        "shaped_reward": 0.75,
        "advantage": -0.123456,
        **changes,
    }


LOST = {
    key: value
    for key, value in slot().items()
    if key.startswith(("iter", "task_id", "tags", "samp"))
} | {"rollout": 2, "failure": "sandbox", "message": "died"}


@given(st.recursive(st.none() | st.text() | st.integers(-(2**50), 2**50), st.lists))
def test_a_block_gives_back_what_went_in_and_holds_nothing_that_html_could_read(data: Any) -> None:
    packed = pack(data)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", packed)
    assert unpack(packed) == json.loads(json.dumps(data).encode("utf-8", "replace"))


def test_a_block_refuses_numbers_that_json_has_not() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        pack([float("nan")])


def test_a_hostile_text_cannot_end_its_element() -> None:
    text = element("step-1", [HOSTILE])
    assert text.startswith('<script type="application/gzip" id="data-step-1">')
    assert text.count("<") == 2


def test_the_index_is_by_column() -> None:
    index = Index()
    index.add_step(7, [slot(), LOST])
    index.add_step(8, [slot(task_id="b", tags=["x", "y"], task_reward=1.0), slot(task_id="b")])
    data = index.data
    columns = data["columns"]
    assert len(index) == 4
    assert data["tasks"] == ["a", "b"]
    assert data["tags"] == [["csv"], ["x", "y"]]
    assert data["groups"]["step"] == [7, 8]
    assert data["groups"]["task"] == [0, 1]
    assert columns["group"] == [0, 0, 1, 1]
    assert [STATES[n] for n in columns["state"]] == ["turn_limit", "sandbox"] + ["turn_limit"] * 2
    assert columns["reward"] == [0.5, None, 1.0, 0.5]
    assert columns["advantage"] == [-0.1235, None, -0.1235, -0.1235]
    assert columns["seconds"] == [1.75, 0, 1.75, 1.75]
    # No verdict on pair 3: the judge's answer was invalid.
    assert columns["verdicts"] == ["pin", "", "pin", "pin"]
    assert columns["judged"] == [0, -1, 0, 0]
    assert data["judged_sets"] == [[2, 3, 7]]


def test_details_leave_out_what_is_as_usual() -> None:
    details = slot_details(slot(), max_chars=10_000)
    assert details["turns"] == [
        {"text": "ls", "tokens": [3, 4], "logprobs": [-0.123, None], "log_ratios": [0.25, None]}
    ]
    assert details["why"] == "uniform"
    assert "cut" not in details
    other = slot(iteration=7)["turns"][0] | {
        "action": None,
        "exit_code": 2,
        "finish_reason": "length",
    }
    (turn,) = slot_details(slot(iteration=7, turns=[other]), max_chars=10_000)["turns"]
    assert turn["versions"] == [6, 6]
    assert (turn["action"], turn["exit_code"], turn["finish_reason"]) == (None, 2, "length")


def test_a_lost_rollout_says_what_it_was_lost_to() -> None:
    details = slot_details(LOST, max_chars=10_000)
    assert (details["failure"], details["message"], details["turns"]) == ("sandbox", "died", [])


def test_tokens_go_first_then_the_middle_of_the_longest_texts() -> None:
    long = slot()["turns"][0] | {"observation": "a" * 5000 + "b" * 5000, "token_ids": [1] * 3000}
    whole = slot(turns=[long, slot()["turns"][0]])
    without_tokens = slot_details(whole, max_chars=12_000)
    assert without_tokens["cut"] == {"tokens": 3002, "chars": 0}
    assert len(without_tokens["turns"][0]["observation"]) == 10_000
    cut = slot_details(whole, max_chars=2000)
    shown = cut["turns"][0]["observation"]
    assert 2000 - 700 < len(shown) <= 2000
    assert shown.startswith("aaaa")
    assert shown.endswith("bbbb")
    assert f"[… {cut['cut']['chars']} characters …]" in shown
    assert cut["turns"][1]["text"] == "ls"
    assert len(json.dumps(cut, ensure_ascii=False)) <= 2000 + 300


def test_short_texts_stay_however_small_the_page_has_to_be() -> None:
    turns = [slot()["turns"][0] | {"observation": "x" * (SHORTEST_CUT - 1)}] * 50
    cut = slot_details(slot(turns=turns), max_chars=10)
    assert cut["cut"] == {"tokens": 100, "chars": 0}


def test_scalars_come_from_tensorboard(run: Path) -> None:
    curves = logged_curves(run)
    assert list(curves["loss/entropy"]) == [1, 2, 3, 4]
    assert curves["loss/entropy"][4] == pytest.approx(0.25)


def test_scalars_come_from_the_csv_logger_too(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="csv", version="")
    for step in (1, 2):
        logger.log_metrics({"loss/policy": step / 4}, step=step)
        logger.log_metrics({"evaluation/pass_rate": 0.5}, step=step)
    logger.save()
    assert logged_curves(tmp_path) == {
        "loss/policy": {1: 0.25, 2: 0.5},
        "evaluation/pass_rate": {1: 0.5, 2: 0.5},
    }


def test_scalars_without_any_logger_come_from_the_records() -> None:
    slots = [slot(task_reward=1.0), slot(), LOST, slot(task_id="b", task_reward=1.0)]
    assert recorded_scalars(slots) == {
        "reward/pass_rate": 2 / 3,
        "reward/all_fail_group_share": 0.0,
        "reward/all_pass_group_share": 0.5,
        "rollout/generated_tokens_mean": 2.0,
        "rollout/turns_mean": 1.0,
    }
    assert recorded_scalars([LOST]) == {}


def test_tokens_put_together_are_the_text(run: Path) -> None:
    (first, *_) = [s for s in read_step(run, 1) if "failure" not in s]
    turn = first["turns"][0]
    texts = token_texts(run, set(turn["token_ids"]))
    assert "".join(texts[token] for token in turn["token_ids"]) == turn["text"]


def test_a_run_without_a_tokenizer_shows_numbers(tmp_path: Path) -> None:
    assert token_texts(tmp_path, {1, 2}) == {}
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    assert token_texts(tmp_path, {1, 2}) == {}


def blocks(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/gzip" id="data-([^"]+)">([^<]*)</script>', page)
    return {name: unpack(text) for name, text in found}


def test_the_command_writes_one_file_that_loads_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "here.html"
    assert main(["report", str(run), "--output", str(target), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    page = target.read_text(encoding="utf-8")
    assert written == {
        "report": str(target),
        "num_bytes": target.stat().st_size,
        "num_steps": 4,
        "num_trajectories": 64,
        "num_cut": 0,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["here.html"]
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page)
    assert "http://www.w3.org/2000/svg" in page
    assert page.count("http") == 2, "only the SVG namespace and http-equiv"
    assert "innerHTML" not in page
    data = blocks(page)
    assert len(data["step-3"]) == 16
    assert data["overview"]["steps"] == [1, 2, 3, 4]
    assert data["overview"]["curves"]["reward/pass_rate"]["steps"] == [1, 2, 3, 4]
    assert len(data["evidence-1"]) == len(data["overview"]["pool"][0]["events"])


def test_the_same_run_gives_the_same_file(run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert main(["report", str(run), "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_small_limit_shortens_trajectories(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "small.html"
    assert main(["report", str(run), "--output", str(target), "--max-mb", "0.01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_cut"] > 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-mb", "0"], "--max-mb = 0.0 must be above 0"),
        (
            ["--output", "/proc/nothing/report.html"],
            "--output: /proc/nothing/report.html cannot be",
        ),
    ],
)
def test_mistakes_are_one_line(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_a_run_without_records_has_nothing_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("experiment_name: x\n")
    assert main(["report", str(tmp_path)]) == 2
    assert "no recorded iteration yet" in capsys.readouterr().err
