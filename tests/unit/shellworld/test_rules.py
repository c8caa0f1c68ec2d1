"""The offline stand-in as a judge, on traces written by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from arise.errors import ConfigError, JudgeError
from arise.llm.chat import Purpose
from arise.rubrics.parsing import parse_judge_answer
from arise.rubrics.payloads import (
    AnnotationPayload,
    EvaluationPayload,
    InitialAnalysisPayload,
    RefinementPayload,
    RubricView,
    TraceStep,
    TrajectoryView,
)
from arise.tasks.shellworld.behaviours import Behaviour
from arise.tasks.shellworld.episode import MAX_TURNS, SUBMIT, observation
from arise.tasks.shellworld.expert import Disposition, Expert
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.rules import RulesModel
from arise.tasks.shellworld.rules_texts import REQUIREMENTS, recognise
from arise.tasks.shellworld.simulate import SimulatedShell
from unit.shellworld.rule_requests import (
    CLOSE,
    FAILED,
    HEEDED,
    IDS,
    JUDGE,
    LIMITS,
    LOOK,
    METADATA,
    MISSING,
    READ,
    REFLECTION,
    RUBRICS,
    WRITE,
    ask,
    evaluate,
    trace,
    view_of,
)

CONFIGS = Path(__file__).parents[3] / "configs"


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


def test_what_it_cannot_answer_names_the_real_model() -> None:
    annotation = AnnotationPayload(
        task_id="t", instruction="i", skill_names=(), artifact_paths=(), registry=()
    )
    with pytest.raises(JudgeError, match="AnnotationPayload; use judge=openai"):
        ask(JUDGE, Purpose.ANNOTATION, annotation)
    with pytest.raises(JudgeError, match=r"'initial_analysis'.*use reflection=openai"):
        ask(REFLECTION, Purpose.INITIAL_ANALYSIS, InitialAnalysisPayload(trajectory=trace()))
    with pytest.raises(JudgeError, match="NoneType; use judge=openai"):
        ask(JUDGE, Purpose.RUBRIC_EVALUATION, None)
    unknown = RefinementPayload(
        rubric=view_of(REQUIREMENTS[0], title="x", fail_condition="y", pass_condition="z"),
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
        # What a config group holds for the model itself, as the builders hand it over.
        group = OmegaConf.to_container(OmegaConf.load(CONFIGS / role / "rules.yaml"))
        assert isinstance(group, dict)
        model = instantiate({k: v for k, v in group.items() if k not in ("defaults", "cache")})
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
