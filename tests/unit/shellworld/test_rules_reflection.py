"""The offline stand-in as a reflection model: new pairs and new skill texts."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from arise.llm.chat import Purpose
from arise.rubrics.parsing import parse_proposals, parse_refined_skill
from arise.rubrics.payloads import (
    FailureRecord,
    GenerationPayload,
    GenerationRecord,
    RefinementPayload,
    RubricView,
    TrajectoryView,
)
from arise.tasks.shellworld.behaviours import Behaviour
from arise.tasks.shellworld.rules import RulesModel
from arise.tasks.shellworld.rules_texts import REQUIREMENTS, Requirement
from arise.tasks.shellworld.skills import HELD_BACK, SEEN, wordings
from arise.tasks.shellworld.tokenizer import build_tokenizer
from arise.types import Diagnostic
from unit.shellworld.rule_requests import (
    FAILED,
    IDS,
    LIMITS,
    LOOK,
    METADATA,
    MISSING,
    READ,
    REFLECTION,
    TASK,
    WRITE,
    ask,
    evaluate,
    trace,
    view_of,
)


def record(number: int, *findings: tuple[str, Requirement], task: str = "t") -> GenerationRecord:
    return GenerationRecord(
        number=number,
        iteration=1,
        task_id=task,
        rollout=number,
        task_types=(),
        instruction=TASK,
        diagnostics=tuple(
            Diagnostic(kind=kind, behaviour=r.gap if kind == "gap" else r.strategy, signal="s")
            for kind, r in findings
        ),
        skills=(),
    )


def propose(
    records: list[GenerationRecord],
    pool: tuple[RubricView, ...] = (),
    max_pairs: int = 8,
    **limits: float,
) -> list[dict]:
    payload = GenerationPayload(
        records=tuple(records), pool=pool, max_pairs=max_pairs, metadata=METADATA
    )
    model = RulesModel(role="reflection", **{**LIMITS, **limits})
    text = ask(model, Purpose.GENERATION, payload)
    assert text == ask(model, Purpose.GENERATION, payload)
    proposals, is_answer = parse_proposals(text, records={})
    assert is_answer
    assert all(all(proposal.texts.values()) for proposal in proposals)
    return json.loads(text)["pairs"]


read, heed, verify, finish, thrift = REQUIREMENTS


def test_pairs_come_from_frequent_gaps_most_frequent_first() -> None:
    records = [
        record(1, ("gap", read), ("gap", verify)),
        record(2, ("strategy", read), ("gap", verify), ("gap", heed)),
        record(3, ("gap", read), ("gap", verify), ("strategy", thrift)),
        record(4, ("gap", finish), ("gap", finish), ("gap", verify)),
    ]
    first, second = propose(records, max_new_pairs_per_update=8)
    assert (first["title"], first["capability"]) == (verify.title, "verification")
    assert (first["issue_records"], first["contrast_records"]) == ([1, 2, 3, 4], [])
    assert (second["title"], second["capability"]) == (read.title, "understanding")
    assert (second["issue_records"], second["contrast_records"]) == ([1, 3], [2])
    assert second["skill"] == read.skill
    # One record each is too little for heed and finish.
    assert len(propose(records, max_new_pairs_per_update=8, min_gap_records=1)) == 4
    assert [p["title"] for p in propose(records, max_new_pairs_per_update=1)] == [verify.title]
    assert [p["title"] for p in propose(records, max_pairs=1)] == [verify.title]
    assert [p["title"] for p in propose(records, min_gap_share=0.7)] == [verify.title]
    assert [p["title"] for p in propose(records, min_gap_share=2 / 3)] == [
        verify.title,
        read.title,
    ]


def test_covered_behaviours_are_not_proposed() -> None:
    records = [record(n, ("gap", read), ("gap", verify)) for n in (1, 2)]
    titles = [p["title"] for p in propose(records, pool=(view_of(read, 5),))]
    assert titles == [verify.title]
    # Not recognised, since it speaks of two requirements, but its title is taken.
    mixed = view_of(read, 5, pass_condition=heed.pass_condition)
    assert [p["title"] for p in propose(records, pool=(mixed,))] == [verify.title]
    # A judge of another kind says that some other rubric covers it.
    entry = replace(records[0].diagnostics[0], covered_by=8)
    judged = [replace(r, diagnostics=(entry,)) for r in records]
    assert propose(judged) == []
    assert propose([record(1, ("strategy", read)), record(2, ("strategy", read))]) == []


def test_cited_records_are_few_and_of_different_tasks_first() -> None:
    records = [record(n, ("gap", read), task=f"t{n % 9 if n > 9 else 0}") for n in range(1, 30)]
    (pair,) = propose(records)
    cited = pair["issue_records"]
    assert len(cited) == 8
    assert len({records[n - 1].task_id for n in cited}) == 8
    assert cited == sorted(cited)


def refine(requirement: Requirement, reasons: list[str], skill: str, revision: int = 0) -> str:
    failures = [
        FailureRecord(record=record(n, ("gap", requirement)), reason=reason, is_success=False)
        for n, reason in enumerate(reasons, 1)
    ]
    payload = RefinementPayload(
        rubric=view_of(requirement),
        skill=skill,
        revision=revision,
        failures=tuple(failures),
        context=(),
        metadata=METADATA,
    )
    text = ask(REFLECTION, Purpose.REFINEMENT, payload)
    assert text == ask(REFLECTION, Purpose.REFINEMENT, payload)
    refined = parse_refined_skill(text, old_text=skill)
    assert refined is not None
    return refined


def reason_of(behaviour: Behaviour, view: TrajectoryView) -> str:
    return evaluate(view).verdicts[IDS[behaviour] - 1].reason


def test_refinement_answers_the_most_frequent_failure() -> None:
    late = reason_of(Behaviour.READ, trace(WRITE, READ))
    never = reason_of(Behaviour.READ, trace(WRITE))
    modes = {mode.name: mode for mode in read.modes}
    assert refine(read, [late, never, late], read.skill) == modes["late"].ladder[0]
    assert refine(read, [late, never, never], read.skill) == modes["never"].ladder[0]
    # What a command says about itself is no evidence.
    lying = reason_of(Behaviour.READ, trace((f"echo {modes['late'].observed} > a", "[ok]")))
    assert refine(read, [lying, lying], read.skill) == modes["never"].ladder[0]
    # Without a known reason the first mode is taken.
    assert refine(read, ["it did not read"], read.skill) == modes["never"].ladder[0]
    pairs = {
        "repeated": trace(FAILED, FAILED),
        "gave_up": trace(FAILED),
        "unlisted": trace(MISSING, LOOK),
        "ignored": trace(FAILED, LOOK),
    }
    for mode in heed.modes:
        reason = reason_of(Behaviour.HEED, pairs[mode.name])
        assert refine(heed, [reason], heed.skill) == mode.ladder[0]


def test_texts_grow_more_concrete_and_never_stay() -> None:
    for requirement in REQUIREMENTS:
        for mode in requirement.modes:
            skill, texts = requirement.skill, []
            for revision in range(7):
                refined = refine(requirement, [f"step 1: {mode.observed}"], skill, revision)
                assert refined != skill
                skill = refined
                texts.append(refined)
            assert tuple(texts) == (*mode.ladder, *mode.ladder, mode.ladder[0])
            assert len(mode.ladder[-1].split()) > len(mode.ladder[0].split())
            # An imported pool may hold a text at any revision.
            assert refine(requirement, [mode.observed], mode.ladder[0], 3) == mode.ladder[1]


def all_skill_texts() -> list[str]:
    ladders = [text for r in REQUIREMENTS for mode in r.modes for text in mode.ladder]
    return [*(r.skill for r in REQUIREMENTS), *ladders]


def test_skill_texts_are_whole_words_for_the_tiny_policy() -> None:
    tokenizer = build_tokenizer()
    for text in all_skill_texts():
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        pieces = [piece.rstrip("Ġ") for piece in tokenizer.convert_ids_to_tokens(ids)]
        assert re.findall(r"[A-Za-z]+", text) == [p for p in pieces if p.isalpha()], text
        assert len(ids) <= 40, text


def test_skill_texts_are_nobody_elses_sentences() -> None:
    texts = all_skill_texts()
    assert len(set(texts)) == len(texts)
    banks = (*SEEN.values(), *HELD_BACK.values())
    known = {text for bank in banks for template in bank for text in wordings(template)}
    sentences = {part for text in texts for part in re.findall(r"[^.]+\.", text)}
    assert not known & ({part.strip() for part in sentences} | set(texts))
