"""`python -m arise.rubrics`: a recorded run's pool shown, written out, edited and compared."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from arise.errors import ConfigError
from arise.rubrics.__main__ import main
from arise.rubrics.events import read_events, replay
from arise.rubrics.pool import RubricPool
from arise.rubrics.pool_source import read_pool

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "data" / "recorded_pool.jsonl"
WRITTEN = """
pairs:
- title: Look at the result
  capability: verification
  rubric: {applicability: A file is written., fail_condition: Never read., pass_condition: Read.}
  skill: {text: Read it back.}
- id: 7
  title: Act on errors
  capability: debugging
  rubric: {applicability: An error., fail_condition: Repeated., pass_condition: Corrected.}
  skill: {text: Read the message., state: active}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(WRITTEN)
    return path


def test_a_life_is_told_from_its_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(RECORDED), "--pair", "2"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("R2 Look at the result after writing it (verification; retired,")
    assert "8 records with the issue, 7 records with the better behaviour, of 12 tasks:" in told
    assert told.endswith(
        "Life: Step 5: created, skill hidden. Step 10: skill on at 2.9% of 207. Step 15: skill "
        "hidden at 52.3% of 199. Step 20: skill on at 22.6% of 234. Step 25: skill hidden at 85.8% "
        "of 247. Step 30: stays hidden at 76.4% of 258. Step 35: stays hidden at 76.9% of 286. "
        "Step 40: stays hidden at 87.5% of 295. Step 45: retired at 95.2% of 291."
    )


def test_the_documented_life_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "rubrics.md").read_text()
    commands = re.findall(
        r"```\n\$ python -m arise\.rubrics (show|diff) (.+)\n((?:.*\n)*?)```", page
    )
    assert [command for command, _, _ in commands].count("show") >= 1
    for command, arguments, shown in commands:
        main([command, *arguments.replace("tests/data", str(RECORDED.parent)).split()])
        assert capsys.readouterr().out.strip() == shown.strip()


def test_the_pool_after_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{RECORDED}@10"]) == 0
    assert "4 pairs, 1 with the skill on; 0 retired" in capsys.readouterr().out
    assert main(["show", str(RECORDED), "--all"]) == 0
    output = capsys.readouterr().out
    assert "3 pairs, 0 with the skill on; 2 retired" in output
    assert len(re.findall(r"^R\d", output, re.MULTILINE)) == 5
    assert len(read_pool(str(RECORDED), lifetime=True).pairs) == 5


def test_export_edit_import_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{RECORDED}@10"
    text = tmp_path / "pool.yaml"
    assert main(["export", source, "--out", str(text)]) == 0
    assert main(["diff", source, str(text)]) == 0
    assert capsys.readouterr().out == ""
    content = yaml.safe_load(text.read_text())
    content["pairs"][1]["skill"]["text"] = "Read back what you wrote."
    content["pairs"][1]["skill"]["state"] = "hidden"
    del content["pairs"][0]
    text.write_text(yaml.safe_dump(content))
    pool = tmp_path / "pool.jsonl"
    assert main(["import", str(text), "--out", str(pool)]) == 0
    assert f"start with rubrics.pool_path={pool}" in capsys.readouterr().out
    assert main(["diff", source, str(pool)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "- R1 Read the named document before writing (understanding)",
        "~ R2 -> R2 Look at the result after writing it",
        "  state",
        "    - active",
        "    + hidden",
        "  skill",
        "    - Look at the file you wrote before you submit.",
        "    + Read back what you wrote.",
    ]
    events = read_events(pool, key="rubrics.pool_path")
    run = RubricPool(max_pairs=64, max_new_pairs=8, max_text_chars=2000)
    run.import_pairs(tuple(replay(events).values()))
    assert [(p.id, p.created_at, p.history[0].type) for p in run.pairs] == [
        (2, 0, "imported"),
        (3, 0, "imported"),
        (4, 0, "imported"),
    ]


def test_pools_are_put_together_with_new_ids_and_no_title_twice(
    tmp_path: Path, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pool.jsonl"
    other = tmp_path / "other.yaml"
    other.write_text(WRITTEN.replace("Look at the result", "Plan first").replace("id: 7", "id: 8"))
    assert main(["import", str(written), str(other), "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert "R8 has the title of R7: left out" in output
    pairs = read_pool(str(out)).pairs
    assert [(pair.id, pair.title) for pair in pairs] == [
        (7, "Act on errors"),
        (8, "Look at the result"),
        (9, "Plan first"),
    ]
    assert pairs[0].is_active


def test_the_state_of_a_pair_survives_every_form(written: Path, tmp_path: Path) -> None:
    first = read_pool(str(written)).pairs
    out = tmp_path / "pool.jsonl"
    main(["import", str(written), "--out", str(out)])
    again = tmp_path / "again.yaml"
    main(["export", str(out), "--out", str(again)])
    texts = [[(p.id, p.title, p.rubric, p.skill) for p in pairs] for pairs in (
        first, read_pool(str(out)).pairs, read_pool(str(again)).pairs)]  # fmt: skip
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pairs: 3", "must hold a list `pairs`"),
        ("- a\n- b", "must hold a list `pairs`"),
        (WRITTEN.replace("debugging", "charm"), "pair number 2: field 'capability' is 'charm'"),
        (WRITTEN.replace("Read it back.", "''"), "pair number 1: field 'text' must be a text"),
        (WRITTEN.replace("Read.", "x" * 3000), "has a text of 3000 characters"),
        ("pairs: []", "there is no pair to import"),
        ("pairs: [", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert main(["import", str(path), "--out", str(tmp_path / "out.jsonl")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_mistakes_of_the_command_line(
    tmp_path: Path, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tmp_path)]) == 2
    assert "the run has no pool.jsonl" in capsys.readouterr().err
    assert main(["show", "no-such-file"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main(["show", str(RECORDED), "--pair", "99"]) == 2
    assert "there are: 1, 2, 3, 4, 5" in capsys.readouterr().err
    assert main(["import", str(written), "--out", str(written)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="a list of pairs has no steps"):
        read_pool(f"{written}@3")


def test_as_a_user_starts_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "arise.rubrics", "export", str(RECORDED), "--lifetime"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert [pair["id"] for pair in yaml.safe_load(done.stdout)["pairs"]] == [1, 2, 3, 4, 5]
    events = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert {event["type"] for event in events} >= {"created", "activated", "hidden", "retired"}
