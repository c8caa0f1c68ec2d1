"""The method with a judge behind real HTTP: verdicts, pairs, life cycle, and no key anywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from arise import app, cli
from runs import TASKS, compose_config, only_run, stub_endpoints, trajectories
from stub_judge import StubJudge

KEY = "sk-test-123456789"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StubJudge]:
    output_dir = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch, StubJudge() as stub:
        patch.setenv("TEST_JUDGE_KEY", KEY)
        endpoints = [
            override
            for group in ("judge", "reflection")
            for override in (
                f"{group}=openai",
                f"{group}.model=stub",
                f"{group}.base_url={stub.base_url}",
                f"{group}.api_key_env=TEST_JUDGE_KEY",
            )
        ]
        app.train(
            compose_config(
                "experiment=arise",
                "debug=tiny",
                "datamodule=folder",
                f"datamodule.corpus={TASKS}",
                f"paths.output_dir={output_dir}",
                "trainer.max_steps=4",
                "rubrics.update_interval=1",
                "quiet=true",
                *endpoints,
            )
        )
        return only_run(output_dir, "arise"), stub


def test_life_cycle_follows_the_verdicts(finished: tuple[Path, StubJudge]) -> None:
    run, _ = finished
    events = [json.loads(line) for line in (run / "pool.jsonl").read_text().splitlines()]
    told = [(event["step"], event["type"]) for event in events if event["type"] != "generation"]
    # The same title is proposed at every update, so it blocks its own duplicate; and the second
    # refinement gives the text that is already there, so it is kept.
    assert told == [
        (1, "created"),
        (2, "activated"),
        (2, "rejected"),
        (3, "refined"),
        (3, "rejected"),
        (4, "kept"),
        (4, "rejected"),
    ]
    refined = [event for event in events if event["type"] == "refined"]
    assert refined[0]["num_applicable"] == 4
    assert refined[0]["pass_rate"] == 0.0
    assert refined[0]["text"].startswith("List the folder")


def test_skills_and_verdicts_are_recorded(finished: tuple[Path, StubJudge]) -> None:
    run, _ = finished
    steps = trajectories(run)
    first, second, third, fourth = (slots[0] for slots in steps.values())
    assert first["review"]["judged_pair_ids"] == []
    assert len(first["review"]["diagnostics"]) == 2
    assert second["review"]["verdicts"] == [
        {"pair_id": 1, "outcome": "fail", "reason": "step 1 shows it"}
    ]
    assert second["skills"] == []
    assert [(s["pair_id"], s["revision"]) for s in third["skills"]] == [(1, 0)]
    assert [(s["pair_id"], s["revision"]) for s in fourth["skills"]] == [(1, 1)]


def test_C04_the_key_is_sent_and_appears_nowhere(finished: tuple[Path, StubJudge]) -> None:
    run, stub = finished
    assert len(stub.requests) >= 4 * 4
    assert all(headers["authorization"] == f"Bearer {KEY}" for headers, _ in stub.requests)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def judge_mistake(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    def main() -> None:
        app.train(compose_config("experiment=arise", "debug=tiny", "datamodule=folder", *overrides))

    with pytest.raises(SystemExit) as raised:
        cli.run(main)
    assert raised.value.code == cli.EXIT_USAGE
    return capsys.readouterr().err


def test_missing_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_JUDGE_KEY", raising=False)
    message = judge_mistake(
        capsys,
        f"datamodule.corpus={TASKS}",
        f"paths.output_dir={tmp_path}",
        "judge=openai",
        "judge.model=stub",
        "judge.api_key_env=TEST_JUDGE_KEY",
    )
    assert "judge.api_key_env" in message
    assert "TEST_JUDGE_KEY" in message
    assert not list(tmp_path.iterdir())


def test_unreachable_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = judge_mistake(
        capsys,
        f"datamodule.corpus={TASKS}",
        f"paths.output_dir={tmp_path}",
        "judge=openai",
        "judge.model=stub",
        "judge.api_key_env=null",
        "judge.base_url=http://127.0.0.1:9/v1",
    )
    assert "judge.base_url" in message
    assert "127.0.0.1:9" in message


def test_imported_pool_with_an_unknown_capability(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool.jsonl"
    pair = {"id": 1, "title": "x", "capability": "charm"}
    pool.write_text(json.dumps({"type": "created", "step": 1, "pair_id": 1, "pair": pair}) + "\n")
    message = judge_mistake(
        capsys,
        f"datamodule.corpus={TASKS}",
        f"paths.output_dir={tmp_path / 'out'}",
        f"rubrics.pool_path={pool}",
    )
    assert str(pool) in message
    assert "line 1" in message


def test_a_resumed_run_asks_for_no_verdict_twice(tmp_path: Path) -> None:
    overrides = (
        "experiment=arise",
        "debug=tiny",
        "datamodule=folder",
        f"datamodule.corpus={TASKS}",
        f"paths.output_dir={tmp_path}",
        "trainer.max_steps=3",
        "rubrics.update_interval=1",
        "callbacks.checkpoint.every_steps=1",
        "callbacks.checkpoint.keep_last=0",
        "quiet=true",
    )
    with StubJudge() as stub:
        app.train(compose_config(*overrides, *stub_endpoints(stub.base_url)))
        run = only_run(tmp_path, "arise")
        first = trajectories(run)
        # As after a death between the last optimizer step and its checkpoint.
        shutil.rmtree(run / "checkpoints" / "step_000003")
        num_asked = len(verdict_requests(stub))
        app.train(compose_config(*overrides, *stub_endpoints(stub.base_url), "ckpt_path=last"))
        assert num_asked > 0
        assert len(verdict_requests(stub)) == num_asked
    assert trajectories(run) == first
    assert all(slot["review"]["verdicts"] for slot in first["step_000003.jsonl.gz"])


def verdict_requests(stub: StubJudge) -> list[str]:
    texts = [body["messages"][1]["content"] for _, body in stub.requests]
    return [text for text in texts if "Criteria that need a verdict" in text]
