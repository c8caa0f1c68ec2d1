"""Trajectories as ATIF documents, and back as a conversation's beginning."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from arise.errors import ConfigError
from arise.evaluation.atif import to_atif
from arise.tasks.corpus import load_corpus
from arise.tasks.prior_context import prior_messages, read_prior_context, with_prior_context
from arise.types import FinishReason, HarnessReport, Trajectory, Turn

TASKS = Path(__file__).parents[1] / "data" / "tasks"


def turn(text: str, **more: Any) -> Turn:
    return Turn(
        prompt_token_ids=(1, 2),
        token_ids=(3, 4),
        logprobs=(-0.5, -0.25),
        policy_versions=(0, 0),
        text=text,
        **more,
    )


TRAJECTORY = Trajectory(
    task_id="t",
    rollout=2,
    turns=(
        turn("<think>why</think>Look.", action="ls", observation="a.txt", starts_row=True),
        turn("broken", observation="error"),
        turn("again", starts_row=True),
    ),
    finish_reason=FinishReason.SUBMITTED,
    task_reward=1.0,
    instruction="List.",
    harness=HarnessReport(prompt_tokens=30, completion_tokens=6),
)


def test_every_call_is_a_step_with_its_tokens() -> None:
    document = to_atif(TRAJECTORY, agent="shell", model="m")
    first, one, two, three = document["steps"]
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3, 4]
    assert (first["source"], first["message"]) == ("user", "List.")
    assert (one["message"], one["reasoning_content"]) == ("Look.", "why")
    assert one["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert one["observation"]["results"] == [
        {"source_call_id": one["tool_calls"][0]["tool_call_id"], "content": "a.txt"}
    ]
    assert one["metrics"]["completion_token_ids"] == [3, 4]
    assert one["metrics"]["logprobs"] == [-0.5, -0.25]
    assert two["observation"] == {"results": [{"content": "error"}]}
    assert "tool_calls" not in two
    assert ("extra" in one, three["extra"]) == (False, {"starts_row": True})
    assert document["final_metrics"]["total_completion_tokens"] == 6
    assert document["final_metrics"]["extra"]["task_reward"] == 1.0


def test_a_document_becomes_the_beginning_of_a_conversation() -> None:
    document = to_atif(TRAJECTORY, agent="shell", model="m")
    assert prior_messages(document) == [
        {"role": "user", "content": "List."},
        {"role": "assistant", "content": "Look.\nls"},
        {"role": "user", "content": "a.txt"},
        {"role": "assistant", "content": "broken"},
        {"role": "user", "content": "error"},
        {"role": "assistant", "content": "again"},
    ]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"schema_version": "2"}, "schema_version"),
        ({"schema_version": "ATIF-v1.2", "steps": 1}, "list of objects"),
        ({"schema_version": "ATIF-v1.8", "steps": [{"source": "robot"}]}, "source = 'robot'"),
    ],
)
def test_what_is_no_document_is_refused(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        prior_messages(document)


def test_a_task_goes_on_from_the_document_beside_it(tmp_path: Path) -> None:
    assert read_prior_context(tmp_path) == ()
    file = tmp_path / "prior_context.json"
    file.write_text(json.dumps(to_atif(TRAJECTORY, agent="shell", model="m")))
    prior = read_prior_context(tmp_path)
    messages = with_prior_context(prior, "Go on.")
    assert messages[-2:] == [
        {"role": "assistant", "content": "again"},
        {"role": "user", "content": "Go on."},
    ]
    joined = with_prior_context(prior[:-1], "Go on.")
    assert joined[-1] == {"role": "user", "content": "error\nGo on."}
    assert prior[-2]["content"] == "error"
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="is no ATIF document"):
        read_prior_context(tmp_path)


def test_a_corpus_reads_it(tmp_path: Path) -> None:
    shutil.copytree(TASKS / "count-errors", tmp_path / "count-errors")
    (tmp_path / "count-errors" / "prior_context.json").write_text(
        json.dumps(to_atif(TRAJECTORY, agent="shell", model="m"))
    )
    (task,) = load_corpus(tmp_path)
    assert [message["role"] for message in task.prior][:2] == ["user", "assistant"]
