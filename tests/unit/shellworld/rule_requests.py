"""Requests to the offline stand-in, and traces written by hand to ask about."""

from __future__ import annotations

import asyncio

from arise.llm.chat import ChatRequest, Purpose
from arise.rubrics.parsing import JudgeAnswer, parse_judge_answer
from arise.rubrics.payloads import (
    EvaluationPayload,
    RubricView,
    TraceStep,
    TrajectoryView,
    WindowMetadata,
)
from arise.tasks.shellworld.episode import SUBMIT
from arise.tasks.shellworld.rules import RulesModel
from arise.tasks.shellworld.rules_texts import REQUIREMENTS, Requirement

TASK = "Use pack.sh to make oak.txt from elm.txt. See rules.md. Then write jade to log.log."
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
