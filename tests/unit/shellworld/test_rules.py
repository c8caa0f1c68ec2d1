"""The offline stand-in: verdicts on traces written by hand, recognition, new texts."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from arise.errors import ConfigError, JudgeError
from arise.llm.chat import ChatRequest, Purpose
from arise.rubrics.parsing import JudgeAnswer, parse_judge_answer, parse_proposals
from arise.rubrics.parsing import parse_refined_skill as parse_skill
from arise.rubrics.payloads import (
    AnnotationPayload,
    EvaluationPayload,
    FailureRecord,
    GenerationPayload,
    GenerationRecord,
    InitialAnalysisPayload,
    RefinementPayload,
    RubricView,
    TraceStep,
    TrajectoryView,
    WindowMetadata,
)
from arise.tasks.shellworld.behaviours import Behaviour
from arise.tasks.shellworld.episode import MAX_TURNS, SUBMIT, observation
from arise.tasks.shellworld.expert import Disposition, Expert
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.rules import RulesModel
from arise.tasks.shellworld.rules_texts import REQUIREMENTS, Requirement, recognise
from arise.tasks.shellworld.simulate import SimulatedShell
from arise.tasks.shellworld.skills import HELD_BACK, SEEN, wordings
from arise.tasks.shellworld.tokenizer import build_tokenizer
from arise.types import Diagnostic

TASK = "Use pack.sh to make oak.txt from elm.txt. See rules.md. Then write jade to log.log."
CONFIGS = Path(__file__).parents[3] / "configs"
LIMITS = {"max_new_pairs_per_update": 2, "min_gap_share": 0.2, "min_gap_records": 2}
METADATA = WindowMetadata(step=5, num_trajectories=1, num_tasks=1, task_types=(), pairs=())
JUDGE = RulesModel(role="judge")
REFLECTION = RulesModel(role="reflection", **LIMITS)

READ = ("cat rules.md", "keep it plain")
WRITE = ("sh pack.sh elm.txt oak.txt", "[ok]")
LOOK = ("cat oak.txt", "x")
CLOSE = ("echo jade > log.log", "[ok]")
FAILED = ("sh pack.sh elm.txt oak.txt", "[exit 2]\nneed volume opal")
HEEDED = ("sh pack.sh elm.txt oak.txt opal", "[ok]")
MISSING = (
    "sort elm.txt > oak.txt",
    "[exit 2]\nsort: cannot read: elm.txt: No such file or directory",
)


def view_of(requirement: Requirement, id_: int = 1, **fields: str) -> RubricView:
    texts = {
        "title": requirement.title,
        "capability": requirement.capability,
        "applicability": requirement.applicability,
        "fail_condition": requirement.fail_condition,
        "pass_condition": requirement.pass_condition,
        **fields,
    }
    return RubricView(id=id_, **texts)


RUBRICS = tuple(view_of(requirement, number) for number, requirement in enumerate(REQUIREMENTS, 1))
IDS = {requirement.behaviour: number for number, requirement in enumerate(REQUIREMENTS, 1)}


def trace(*pairs: tuple[str, str], task: str = TASK, finish: str = "submitted") -> TrajectoryView:
    steps = [TraceStep(text=c, command=c, observation=o, exit_code=0) for c, o in pairs]
    if finish == "submitted":
        steps.append(TraceStep(text=SUBMIT, command=SUBMIT))
    return TrajectoryView(
        task_id="t", instruction=task, steps=tuple(steps), finish_reason=finish, is_success=False
    )


def ask(model: RulesModel, purpose: Purpose, payload: object) -> str:
    request = ChatRequest(purpose=purpose, messages=(), payload=payload)
    return asyncio.run(model.complete(request)).text


def evaluate(view: TrajectoryView, rubrics: tuple[RubricView, ...] = RUBRICS) -> JudgeAnswer:
    payload = EvaluationPayload(
        trajectory=view, rubrics=rubrics, pool=rubrics, asks_diagnostics=True
    )
    ids = [rubric.id for rubric in rubrics]
    text = ask(JUDGE, Purpose.RUBRIC_EVALUATION, payload)
    answer = parse_judge_answer(text, asked_ids=ids, pool_ids=ids)
    assert answer.problems == {}
    assert [verdict.pair_id for verdict in answer.verdicts] == ids
    assert answer.has_diagnostics
    return answer


@pytest.mark.parametrize(
    ("behaviour", "view", "outcome", "reason"),
    [
        (Behaviour.READ, trace(READ, WRITE), "pass", "step 1 (`cat rules.md`)"),
        (Behaviour.READ, trace(WRITE, READ), "fail", "written before the document is read"),
        (Behaviour.READ, trace(WRITE, LOOK), "fail", "nothing reads the document"),
        (Behaviour.READ, trace(), "fail", "no step: nothing reads the document"),
        (Behaviour.READ, trace(WRITE, task="Sort a.txt into b.txt."), "not_applicable", "names no"),
        (Behaviour.HEED, trace(FAILED, HEEDED), "pass", "step 2"),
        (Behaviour.HEED, trace(READ, FAILED, FAILED, HEEDED), "fail", "step 3 (`sh pack.sh"),
        (Behaviour.HEED, trace(FAILED, FAILED, HEEDED), "fail", "repeated unchanged"),
        (Behaviour.HEED, trace(FAILED, LOOK), "fail", "leaves out what the error names"),
        (Behaviour.HEED, trace(MISSING, ("ls", "elm.old")), "pass", "step 2 (`ls`)"),
        (Behaviour.HEED, trace(MISSING, LOOK), "fail", "missing file is not looked for"),
        (Behaviour.HEED, trace(READ, FAILED), "fail", "submits right after a failed command"),
        (Behaviour.HEED, trace(FAILED, finish="turn_limit"), "not_applicable", "no command failed"),
        (Behaviour.HEED, trace(WRITE), "not_applicable", "no command failed"),
        (Behaviour.VERIFY, trace(WRITE, LOOK), "pass", "step 2 (`cat oak.txt`)"),
        (Behaviour.VERIFY, trace(WRITE), "fail", "nothing is looked at"),
        (Behaviour.VERIFY, trace(LOOK, WRITE), "fail", "only before it is written"),
        (Behaviour.VERIFY, trace(WRITE, READ), "fail", "other files are looked at"),
        (Behaviour.VERIFY, trace(READ, FAILED), "not_applicable", "no command wrote"),
        (Behaviour.FINISH, trace(WRITE, CLOSE), "pass", "step 2 (`echo jade > log.log`)"),
        (Behaviour.FINISH, trace(WRITE), "fail", "submits without the last step"),
        (Behaviour.FINISH, trace(WRITE, finish="turn_limit"), "fail", "before the last step"),
        (Behaviour.FINISH, trace(WRITE, task="Sort a.txt into b.txt."), "not_applicable", "no fur"),
        (Behaviour.THRIFT, trace(READ, WRITE), "pass", "step 2"),
        (Behaviour.THRIFT, trace(WRITE, LOOK, LOOK), "fail", "step 3 (`cat oak.txt`): the command"),
        (Behaviour.THRIFT, trace(("ls", "a"), WRITE), "fail", "folder is listed without need"),
        (Behaviour.THRIFT, trace(WRITE, finish="context_limit"), "fail", "never submits"),
        (Behaviour.THRIFT, trace(), "not_applicable", "no command was run"),
    ],
)
def test_verdicts_on_traces_written_by_hand(
    behaviour: Behaviour, view: TrajectoryView, outcome: str, reason: str
) -> None:
    verdict = evaluate(view).verdicts[IDS[behaviour] - 1]
    assert verdict.outcome.value == outcome, verdict.reason
    assert reason in verdict.reason


def test_steps_are_numbered_as_in_the_prompt() -> None:
    unreadable = TraceStep(text="I think", observation="[no command] Reply with one command.")
    view = trace(READ, WRITE, LOOK)
    view = replace(view, steps=(unreadable, *view.steps))
    assert "step 2 (`cat rules.md`)" in evaluate(view).verdicts[0].reason


def test_an_exit_code_outside_the_observation_counts_too() -> None:
    failed = TraceStep(text="", command="sh a.sh", observation="need key opal", exit_code=2)
    view = replace(trace(WRITE), steps=(failed, *trace(WRITE).steps))
    assert evaluate(view).verdicts[1].outcome.value == "fail"


def test_the_outcome_changes_nothing() -> None:
    for view in (trace(READ, WRITE), trace(WRITE, LOOK, CLOSE)):
        solved = replace(view, is_success=True)
        for purpose, make in (
            (Purpose.INITIAL_ANALYSIS, lambda v: InitialAnalysisPayload(trajectory=v)),
            (
                Purpose.RUBRIC_EVALUATION,
                lambda v: EvaluationPayload(
                    trajectory=v, rubrics=RUBRICS, pool=RUBRICS, asks_diagnostics=True
                ),
            ),
        ):
            assert ask(JUDGE, purpose, make(view)) == ask(JUDGE, purpose, make(solved))


def test_diagnostics_name_gaps_strategies_and_what_covers_them() -> None:
    view = trace(WRITE, LOOK)
    text = ask(JUDGE, Purpose.INITIAL_ANALYSIS, InitialAnalysisPayload(trajectory=view))
    alone = parse_judge_answer(text, asked_ids=(), pool_ids=())
    assert alone.problems == {}
    assert alone.verdicts == ()
    assert [(d.kind, d.behaviour, d.covered_by) for d in alone.diagnostics] == [
        ("gap", REQUIREMENTS[0].gap, None),
        ("strategy", REQUIREMENTS[2].strategy, None),
        ("gap", REQUIREMENTS[3].gap, None),
        ("strategy", REQUIREMENTS[4].strategy, None),
    ]
    assert alone.diagnostics[1].signal.startswith("step 2 (`cat oak.txt`)")
    pool = (view_of(REQUIREMENTS[2], 7), view_of(REQUIREMENTS[2], 9), view_of(REQUIREMENTS[0], 12))
    assert [d.covered_by for d in evaluate(view, pool).diagnostics] == [12, 7, None, None]


def test_no_diagnostics_unless_asked() -> None:
    payload = EvaluationPayload(
        trajectory=trace(WRITE), rubrics=RUBRICS[:2], pool=(), asks_diagnostics=False
    )
    text = ask(JUDGE, Purpose.RUBRIC_EVALUATION, payload)
    answer = parse_judge_answer(text, asked_ids=(1, 2), pool_ids=())
    assert (len(answer.verdicts), answer.has_diagnostics) == (2, False)


def test_J10_the_reason_comes_before_the_verdict() -> None:
    payload = EvaluationPayload(
        trajectory=trace(WRITE), rubrics=RUBRICS, pool=(), asks_diagnostics=False
    )
    for line in ask(JUDGE, Purpose.RUBRIC_EVALUATION, payload).splitlines():
        assert list(json.loads(line)) == ["id", "reason", "verdict"]


def test_rubrics_are_recognised_by_their_text() -> None:
    other = {"title": "T", "fail_condition": "f", "pass_condition": "p"}
    for requirement in REQUIREMENTS:
        assert recognise(view_of(requirement)) is requirement
        for key in other:
            text = f"  {getattr(requirement, key).upper()}\n"
            assert recognise(view_of(requirement, **{**other, key: text})) is requirement
    assert recognise(view_of(REQUIREMENTS[0], **other)) is None
    mixed = view_of(REQUIREMENTS[0], fail_condition=REQUIREMENTS[1].fail_condition)
    assert recognise(mixed) is None


def test_an_unknown_rubric_is_not_applicable() -> None:
    unknown = RubricView(
        id=4,
        title="Politeness",
        capability="execution",
        applicability="a",
        fail_condition="rude",
        pass_condition="polite",
    )
    (verdict,) = evaluate(trace(WRITE), (unknown,)).verdicts
    assert verdict.outcome.value == "not_applicable"
    assert "does not understand this rubric" in verdict.reason


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5), TEXTS, st.sampled_from(("submitted", "x")))
def test_any_trace_gets_a_valid_answer(
    pairs: list[tuple[str, str]], task: str, finish: str
) -> None:
    evaluate(trace(*pairs, task=task, finish=finish))


def test_verdicts_agree_with_how_the_scripted_expert_behaves() -> None:
    for number, spec in enumerate(generate_tasks("train", 60, 3)):
        good = number % 2 == 0
        shows = Disposition(read=good, heed=good, verify=good, finish=good)
        shell, pairs = SimulatedShell(spec), []
        commands = Expert(spec.plan, shows, random.Random(number)).play()
        command = next(commands)
        while command != SUBMIT and len(pairs) < MAX_TURNS:
            seen = shell.run(command)
            pairs.append((command, observation(seen)))
            command = commands.send(seen)
        finish = "submitted" if command == SUBMIT else "turn_limit"
        answer = evaluate(trace(*pairs, task=spec.instruction, finish=finish))
        outcomes = [verdict.outcome.value for verdict in answer.verdicts[:4]]
        assert set(outcomes) <= ({"pass", "not_applicable"} if good else {"fail", "not_applicable"})
        assert outcomes[0] == ("pass" if good else "fail")


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
    refined = parse_skill(text, old_text=skill)
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


def test_what_it_cannot_answer_names_the_real_model() -> None:
    annotation = AnnotationPayload(
        task_id="t", instruction="i", skill_names=(), artifact_paths=(), registry=()
    )
    with pytest.raises(JudgeError, match="AnnotationPayload; use judge=openai"):
        ask(JUDGE, Purpose.ANNOTATION, annotation)
    with pytest.raises(JudgeError, match="'initial_analysis'.*use reflection=openai"):
        ask(REFLECTION, Purpose.INITIAL_ANALYSIS, InitialAnalysisPayload(trajectory=trace()))
    with pytest.raises(JudgeError, match="NoneType; use judge=openai"):
        ask(JUDGE, Purpose.RUBRIC_EVALUATION, None)
    unknown = RefinementPayload(
        rubric=view_of(read, title="x", fail_condition="y", pass_condition="z"),
        skill="s",
        revision=0,
        failures=(),
        context=(),
        metadata=METADATA,
    )
    with pytest.raises(JudgeError, match="does not understand the rubric 'x'"):
        ask(REFLECTION, Purpose.REFINEMENT, unknown)


def test_it_says_once_that_it_is_a_stand_in(caplog: pytest.LogCaptureFixture) -> None:
    for role in ("judge", "reflection"):
        model = instantiate(OmegaConf.load(CONFIGS / role / "rules.yaml"))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            asyncio.run(model.start())
            asyncio.run(model.start())
        (line,) = caplog.messages
        assert line.startswith(f"{role}=rules is an offline stand-in")
        assert "not a language model" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"role": "critic"}, "judge.role"),
        ({"role": "reflection"}, "reflection.max_new_pairs_per_update must be"),
        ({"role": "judge", "min_gap_share": 0.5}, "judge.min_gap_share has no meaning"),
        ({"role": "reflection", **LIMITS, "min_gap_share": 1.1}, "reflection.min_gap_share must"),
        ({"role": "reflection", **LIMITS, "min_gap_records": 0}, "reflection.min_gap_records must"),
        ({"role": "reflection", **LIMITS, "max_new_pairs_per_update": True}, "got True"),
    ],
)
def test_bad_settings_name_their_key(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RulesModel(**options)
