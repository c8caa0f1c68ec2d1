"""The offline stand-in's side of the OnlineRubrics baseline: differences of two traces by rules."""

from __future__ import annotations

from arise.llm.text import dump_json
from arise.rubrics.criteria_payloads import ExtractionPayload, MergePayload
from arise.rubrics.payloads import TrajectoryView
from arise.rubrics.proposals import fold
from arise.tasks.shellworld.rules_judge import find

_WEIGHT = 1


def answer_extraction(payload: ExtractionPayload) -> str:
    """One criterion for each requirement that one of the two traces meets and the other misses.

    The quote is a command of the trace that meets it, of the other one if that has none.
    """
    pairs = zip(find(payload.current), find(payload.reference), strict=True)
    criteria = [
        {
            "quote": _quote(payload.current if first.shown else payload.reference),
            "criterion": first.requirement.pass_condition,
            "weight": _WEIGHT,
        }
        for first, second in pairs
        if {first.shown, second.shown} == {True, False}
    ]
    return dump_json({"criteria": criteria})


def answer_merge(payload: MergePayload) -> str:
    """Each wording once, in the order in which it came first."""
    distinct = {fold(entry.text): entry for entry in reversed(payload.criteria)}
    kept = [entry for entry in payload.criteria if distinct[fold(entry.text)] is entry]
    return dump_json(
        {
            "criteria": [
                {"quote": entry.quote, "criterion": entry.text, "weight": entry.weight}
                for entry in kept[: payload.max_criteria]
            ]
        }
    )


def _quote(view: TrajectoryView) -> str:
    commands = [step.command for step in view.steps if step.command]
    return commands[-1] if commands else view.steps[0].text
