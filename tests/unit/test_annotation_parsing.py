"""Answers of the annotator as models really give them."""

import json

import pytest

from arise.tasks.annotation import parse_annotation

NAMES = ["Unit harmonization", "3D asset analysis", "Data cleaning"]


def entry(name: str, **changes: object) -> dict[str, object]:
    return {"operation": "o", "observable_result": "r", "task_type": name} | changes


def matches(answer: object) -> list[str]:
    found = parse_annotation(answer if isinstance(answer, str) else json.dumps(answer), NAMES)
    assert found is not None
    return [match.task_type for match in found.matches]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot help with that.",
        '{"candidates": []}',
        '{"matches": "Data cleaning"}',
        "[]",
        '<think>\n{"matches": []}',
        '{"matches": [{"operation": "o", "observable_res',
    ],
)
def test_an_answer_without_the_form_is_none(text: str) -> None:
    assert parse_annotation(text, NAMES) is None


def test_spellings_duplicates_and_thinking() -> None:
    answer = {
        "matches": [entry("data   CLEANING"), entry("3d asset-analysis"), entry("Data cleaning")]
    }
    assert matches(answer) == ["Data cleaning", "3D asset analysis"]
    thought = '<think>\n{"matches": [{"task_type": "Unit harmonization"}]}\n</think>\n'
    assert matches(thought + json.dumps(answer)) == ["Data cleaning", "3D asset analysis"]
    assert matches({"matches": []}) == []


@pytest.mark.parametrize(
    "weak",
    [
        entry("Data cleaning", operation=""),
        entry("Data cleaning", observable_result=None),
        {"task_type": "Data cleaning"},
        "Data cleaning",
    ],
)
def test_a_match_without_operation_and_result_is_a_candidate(weak: object) -> None:
    found = parse_annotation(json.dumps({"matches": [weak]}), NAMES)
    assert found is not None
    assert (found.matches, found.candidates) == ((), ("Data cleaning",))


def test_invented_names_are_told_and_candidates_that_match_are_none() -> None:
    answer = {
        "matches": [entry("Data cleaning"), entry("Library science"), 3],
        "candidates": [entry("Data cleaning"), entry("Unit harmonization"), "Cooking"],
    }
    found = parse_annotation(json.dumps(answer), NAMES)
    assert found is not None
    assert [match.task_type for match in found.matches] == ["Data cleaning"]
    assert found.candidates == ("Unit harmonization",)
    assert found.unknown == ("Library science", "Cooking")
