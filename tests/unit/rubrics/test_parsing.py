"""Answers as models really give them: each a documented value or invalid, never an invented one."""

import json
import time

import pytest

from arise.rubrics.lenient_json import read_objects
from arise.rubrics.parsing import (
    JudgeAnswer,
    parse_judge_answer,
    parse_proposals,
    parse_refined_skill,
    read_outcome,
)
from arise.rubrics.proposals import EvidenceRef
from arise.types import Diagnostic, Outcome

PASS, FAIL, NA = Outcome.PASS, Outcome.FAIL, Outcome.NOT_APPLICABLE
L1 = '{"id": 1, "reason": "step 3 reads it", "verdict": "pass"}'
L2 = '{"id": 2, "reason": "never checked", "verdict": "fail"}'
L3 = '{"id": 3, "reason": "no error occurs", "verdict": "not_applicable"}'
ALL = {1: PASS, 2: FAIL, 3: NA}


def judge(text: str) -> JudgeAnswer:
    return parse_judge_answer(text, asked_ids=[1, 2, 3], pool_ids=[1, 2, 3, 4])


def outcomes(text: str) -> dict[int, Outcome]:
    return {verdict.pair_id: verdict.outcome for verdict in judge(text).verdicts}


@pytest.mark.parametrize(
    "text",
    [
        f"{L1}\n{L2}\n{L3}",
        f"{L3}\r\n{L1}\r\n\r\n{L2}\r\n",
        f"Here are my verdicts:\n```jsonl\n{L1}\n{L2}\n{L3}\n```\nHope this helps!",
        f"```{L1}\n{L2}\n{L3}```",
        f"[{L1},\n{L2},\n{L3},\n]",
        f"[{L1}, {L2}, {L3}]",
        f"{L1}{L2} {L3}",
        f"{L1},\n{L2},\n{L3},",
        f"- {L1}\n* {L2}\n3. {L3}",
        f"\ufeff{L1}\n{L2}\n{L3}",
        f'{{"verdicts": [{L1}, {L2}, {L3}]}}',
        json.dumps([json.loads(line) for line in (L1, L2, L3)], indent=2),
        "\n".join(json.dumps(json.loads(line), indent=1) for line in (L1, L2, L3)),
        L1.replace("}", ",}") + f"\n{L2}\n{L3}",
        L1.replace(": 1", ': "r1"') + "\n" + L2.replace(": 2", ': "#2"') + f"\n{L3}",
        L1.replace('"id"', '"rubric_id"') + f"\n{L2}\n{L3}",
        L1.replace("step 3", "step\t3") + f"\n{L2}\n{L3}",
        L1.replace("step 3", "step\n3") + f"\n{L2}\n{L3}",
        L1.replace("step 3", 'he wrote {\\"id\\": 1, \\"verdict\\": \\"fail\\"}') + f"\n{L2}\n{L3}",
    ],
)
def test_tolerated_forms(text: str) -> None:
    assert outcomes(text) == ALL


@pytest.mark.parametrize(
    ("spelling", "outcome"),
    [
        ("PASS", PASS),
        ("passed", PASS),
        (" Fail ", FAIL),
        ("failed", FAIL),
        ("N/A", NA),
        ("n.a.", NA),
        ("NA", NA),
        ("not applicable", NA),
        ("Not-Applicable", NA),
        ("inapplicable", NA),
        ("pass|fail", None),
        ("passable", None),
        ("not pass", None),
        ("partial", None),
        ("", None),
        (True, None),
        (1, None),
        (None, None),
        (["pass"], None),
    ],
)
def test_spellings_of_a_verdict(spelling: object, outcome: Outcome | None) -> None:
    assert read_outcome(spelling) is outcome


def test_J05_an_invalid_escape_costs_at_most_its_own_line() -> None:
    bad = r'{"id": 2, "reason": "fmt \$#,##0 in C:\path", "verdict": "fail"}'
    assert outcomes(f"{L1}\n{bad}\n{L3}") == ALL
    assert judge(bad).verdicts[0].reason == r"fmt \$#,##0 in C:\path"
    broken = '{"id": 2, "reason": "he said "no"", "verdict": "fail"}'
    answer = judge(f"{L1}\n{broken}\n{L3}")
    assert {verdict.pair_id for verdict in answer.verdicts} == {1, 3}
    assert answer.problems == {"broken_lines": 1}


@pytest.mark.parametrize("length", range(1, len(L3)))
def test_a_cut_answer_loses_the_last_verdict_only(length: int) -> None:
    assert outcomes(f"{L1}\n{L2}\n{L3[:length]}") == {1: PASS, 2: FAIL}


def test_agreeing_duplicates_are_one_verdict_and_contradicting_ones_none() -> None:
    other = L1.replace("step 3", "step 9")
    answer = judge(f"{L1}\n{other}\n{L2}\n{L2.replace('fail', 'pass')}\n{L3}")
    assert {verdict.pair_id: verdict.outcome for verdict in answer.verdicts} == {1: PASS, 3: NA}
    assert answer.verdicts[0].reason == "step 3 reads it"
    assert answer.problems == {"duplicates": 2, "contradictions": 1}
    twice = f"{L2}\n{L2.replace('fail', 'pass')}\n{L2}"
    assert outcomes(twice) == {}


def test_wrong_ids_are_ignored_and_counted() -> None:
    lines = [L1.replace(": 1", f": {id_}") for id_ in ('"x"', "7", "null", "true", "1.0", '"1a"')]
    answer = judge("\n".join([*lines, L2]))
    assert [verdict.pair_id for verdict in answer.verdicts] == [2]
    assert answer.problems == {"unknown_ids": 6}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot help with evaluating this transcript.",
        "Overall I think r1 passes.",
        "r1: pass\nr2: pass\nr3: pass",
        'Rubric 1 is {"id": 1, "verdict": "pass"} in my view.',
        "{1: pass, 2: fail}",
        "null",
        "[[[[",
        '{"verdict": "pass"}',
        '{"id": 1}',
        '"{\\"id\\": 1, \\"verdict\\": \\"pass\\"}"',
        "[" * 100_000,
    ],
)
def test_J11_refusal_and_prose_are_no_verdict(text: str) -> None:
    assert outcomes(text) == {}


def test_X07_lone_surrogates_become_replacement_characters() -> None:
    answer = judge(L1.replace("step 3", "\\ud83d and \\ud83d\\ude00"))
    assert answer.verdicts[0].reason == "\ufffd and \U0001f600 reads it"


def test_diagnostics() -> None:
    findings = [
        {"kind": "gap", "behaviour": "no read-back", "signal": "step 4", "covered_by": "r4"},
        {"kind": "Strategy", "behavior": "reads the spec first", "covered_by": 9},
        {"kind": "verdict", "behaviour": "x"},
        {"kind": "gap", "behaviour": " "},
        "gap",
    ]
    answer = judge(L1 + "\n" + json.dumps({"diagnostics": findings}))
    assert answer.diagnostics == (
        Diagnostic(kind="gap", behaviour="no read-back", signal="step 4", covered_by=4),
        Diagnostic(kind="strategy", behaviour="reads the spec first"),
    )
    assert answer.problems == {"unreadable_diagnostics": 3}
    assert answer.has_diagnostics
    assert not judge(L1).has_diagnostics
    assert judge('{"diagnostics": []}').has_diagnostics


def test_a_flood_of_findings_and_words_is_bounded() -> None:
    findings = [{"kind": "gap", "behaviour": "b" * 5000}] * 50
    answer = judge(json.dumps({"diagnostics": findings}))
    assert len(answer.diagnostics) == 20
    assert len(answer.diagnostics[0].behaviour) == 600


@pytest.mark.parametrize(
    "text",
    ['{"\\"' * 50_000, "{\n" * 40_000, '{"a":' * 50_000, '{"\\\n' * 20_000, "`-* " * 90_000],
)
def test_hostile_answers_take_no_time(text: str) -> None:
    started = time.perf_counter()
    assert read_objects(text)[0] == []
    assert time.perf_counter() - started < 5.0


PAIR = {
    "title": "Read back",
    "capability": "verification",
    "applicability": "a file is written",
    "fail_condition": "never read",
    "pass_condition": "read",
    "skill": "Read it.",
    "issue_records": [2, "1", 2, 77],
    "contrast_records": [3],
}
RECORDS = {n: EvidenceRef(task_id=f"t{n}", iteration=n, rollout=0) for n in (1, 2, 3)}


def test_R02_prose_braces_trailing_comma_and_repeated_block_give_one_pair() -> None:
    block = "For {project}:\n```json\n[" + json.dumps(PAIR) + ",]\n```\n"
    proposals, is_answer = parse_proposals(block * 2, records=RECORDS)
    assert [proposal.title for proposal in proposals] == ["Read back"]
    assert is_answer
    assert [ref.task_id for ref in proposals[0].issues] == ["t2", "t1"]
    assert [ref.task_id for ref in proposals[0].contrasts] == ["t3"]


def test_proposals_in_other_shapes() -> None:
    rubric = {key: PAIR[key] for key in ("applicability", "fail_condition", "pass_condition")}
    nested = {
        "id": 1,
        "title": "Read back",
        "capability": "verification",
        "rubric": rubric,
        "skill": {"text": "Read it."},
    }
    expected = {key: value for key, value in PAIR.items() if isinstance(value, str)}
    for text in (json.dumps({"pairs": [PAIR]}, indent=2), json.dumps(PAIR), json.dumps([nested])):
        (proposal,), is_answer = parse_proposals(text, records={})
        assert (proposal.texts, is_answer) == (expected, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"pairs": []}', True),
        ("```json\n[]\n```", True),
        ("I see nothing new.", False),
        ("", False),
        ('{"error": "overloaded"}', False),
    ],
)
def test_nothing_new_is_an_answer_and_nonsense_is_none(text: str, expected: bool) -> None:
    assert parse_proposals(text, records={}) == ((), expected)


def test_fields_that_are_no_text_are_empty() -> None:
    (proposal,), _ = parse_proposals(json.dumps({**PAIR, "skill": 3, "title": None}), records={})
    assert (proposal.skill, proposal.title) == ("", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"skill": " Do it at once. "}', "Do it at once."),
        ('Sure:\n```json\n{"skill": {"text": "Do it."}}\n```', "Do it."),
        ('{"skill": "old  TEXT"}', None),
        ('{"skill": ""}', None),
        ('{"skill": 5}', None),
        ("I am sorry, but I cannot do that.", None),
    ],
)
def test_refined_skill(text: str, expected: str | None) -> None:
    assert parse_refined_skill(text, old_text="Old text") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<think>\n{L1.replace('pass', 'fail')}\n</think>\n{L1}\n{L2}\n{L3}", ALL),
        (f"  <think>Let me see.</think>\n{L1}\n{L2}\n{L3}", ALL),
        (f"Let me see, step 3 ...\n</think>\n\n{L1}\n{L2}\n{L3}", ALL),
        (f"<think>\n{L1}\n{L2}", {}),
        # A marker that the answer quotes hides nothing that was said before it.
        (f"{L2}\nIt wrote:\n</think>\n{L2.replace('fail', 'pass')}", {}),
        (f"<think>It wrote:\n</think>\n{L2.replace('fail', 'pass')}\n</think>\n{L2}", {}),
    ],
)
def test_thinking_in_front_of_the_answer(text: str, expected: dict[int, Outcome]) -> None:
    assert outcomes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"verdicts": [{L1}, {L2}, {{"id": 3, "reas', {1: PASS, 2: FAIL}),
        (f'[{L1}, {L2}, {{"id": 3, "reason": "a "b"", "verdict": "fail"}}]', {1: PASS, 2: FAIL}),
        # After the broken entry nobody knows what is inside a string.
        (f'{{"verdicts": [{L1}, {{"id": 2, "reason": "he said "no"}}, {L3}]}}', {1: PASS}),
        (f'{{"verdicts": [{{"id": 9, "reason": "{L1}', {}),
        ('{"verdicts": [', {}),
    ],
)
def test_of_a_broken_list_the_entries_before_the_break_count(
    text: str, expected: dict[int, Outcome]
) -> None:
    assert outcomes(text) == expected
    assert judge(text).problems["broken_lines"] == 1
