"""The judge's side of the offline stand-in: findings and verdicts from the trace alone.

The verifier's outcome is in the payload and is never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arise.llm.text import dump_json, dump_jsonl
from arise.rubrics.payloads import (
    EvaluationPayload,
    InitialAnalysisPayload,
    RubricView,
    TraceStep,
    TrajectoryView,
)
from arise.tasks.shellworld.behaviours import (
    Behaviour,
    Step,
    looks_at,
    observe_behaviours,
    written,
)
from arise.tasks.shellworld.rules_texts import REQUIREMENTS, Requirement, covered, recognise
from arise.types import FinishReason, Outcome

QUOTE_CHARS = 100
NOT_UNDERSTOOD = "the offline stand-in does not understand this rubric, so it does not judge it"
_OUTCOMES = {True: Outcome.PASS, False: Outcome.FAIL, None: Outcome.NOT_APPLICABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The commands of a trajectory, without the one that submits.

    Attributes:
        instruction: The task as the agent saw it.
        steps: Commands and observations.
        numbers: Number of each of `steps` in the whole trace, from 1.
        submitted: Whether the agent ended the episode itself.
    """

    instruction: str
    steps: tuple[Step, ...]
    numbers: tuple[int, ...]
    submitted: bool

    def shows(self, behaviour: Behaviour, start: int, stop: int, *, submitted: bool) -> bool | None:
        """Whether `steps[start:stop]` alone show a behaviour."""
        part = self.steps[start:stop]
        return observe_behaviours(self.instruction, part, submitted=submitted)[behaviour]

    def quote(self, index: int | None) -> str:
        """Number and command of a step, for a reason; `None` for the lack of one."""
        if index is None:
            return "no step"
        command = " ".join(self.steps[index].command.split())
        cut = command if len(command) <= QUOTE_CHARS else f"{command[:QUOTE_CHARS]}…"
        return f"step {self.numbers[index]} (`{cut}`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the trace shows about one requirement.

    Attributes:
        requirement: Which one.
        shown: True, False, or `None` where nothing called for it.
        reason: The step and what is to be seen there.
    """

    requirement: Requirement
    shown: bool | None
    reason: str


def read_trace(view: TrajectoryView) -> Trace:
    """The commands that were executed, as the behaviours are read off them."""
    submitted = view.finish_reason == FinishReason.SUBMITTED
    executed = [
        (number, step)
        for number, step in enumerate(view.steps, start=1)
        if step.command is not None
    ]
    # The command that submits is not executed, so nothing comes back.
    if submitted and executed and _is_unanswered(executed[-1][1]):
        executed.pop()
    return Trace(
        instruction=view.instruction,
        steps=tuple(_step(step) for _, step in executed),
        numbers=tuple(number for number, _ in executed),
        submitted=submitted,
    )


def _is_unanswered(step: TraceStep) -> bool:
    return step.exit_code is None and not step.observation


def _step(step: TraceStep) -> Step:
    observation = step.observation
    # Not every harness writes the exit code into the observation.
    if step.exit_code and not observation.startswith("[exit "):
        observation = f"[exit {step.exit_code}]\n{observation}"
    return Step(command=step.command or "", observation=observation)


def find(view: TrajectoryView) -> tuple[Finding, ...]:
    """What the trace shows about every requirement, in their order."""
    trace = read_trace(view)
    shown = observe_behaviours(trace.instruction, trace.steps, submitted=trace.submitted)
    return tuple(
        Finding(
            requirement=requirement,
            shown=shown[requirement.behaviour],
            reason=_reason(requirement, trace, shown[requirement.behaviour]),
        )
        for requirement in REQUIREMENTS
    )


def _reason(requirement: Requirement, trace: Trace, shown: bool | None) -> str:
    if shown is None:
        return requirement.no_occasion
    if shown:
        index = _shown_at(requirement.behaviour, trace)
        return f"{trace.quote(index)}: {requirement.strategy}"
    index, name = _MISSED[requirement.behaviour](trace)
    observed = next(mode.observed for mode in requirement.modes if mode.name == name)
    return f"{trace.quote(index)}: {observed}"


def _shown_at(behaviour: Behaviour, trace: Trace) -> int | None:
    """The step that first shows it; for thrift, which all steps show, the last one."""
    last = len(trace.steps) - 1 if trace.steps else None
    if behaviour is Behaviour.THRIFT:
        return last
    for index in range(len(trace.steps)):
        if trace.shows(behaviour, 0, index + 1, submitted=False):
            return index
    return last


def _last(indices: Iterable[int]) -> int | None:
    return max(indices, default=None)


def _missed_read(trace: Trace) -> tuple[int | None, str]:
    writes = [index for index, step in enumerate(trace.steps) if written(step.command)]
    reads = [
        index
        for index, step in enumerate(trace.steps)
        if any(
            word.endswith(".md") and word in trace.instruction for word in looks_at(step.command)
        )
    ]
    if reads and writes and max(reads) > writes[0]:
        return writes[0], "late"
    return (writes[0] if writes else _last(range(len(trace.steps)))), "never"


def _missed_heed(trace: Trace) -> tuple[int | None, str]:
    last = len(trace.steps) - 1
    for index, step in enumerate(trace.steps):
        submitted = trace.submitted and index == last
        if trace.shows(Behaviour.HEED, index, index + 2, submitted=submitted) is not False:
            continue
        if index == last:
            return index, "gave_up"
        if trace.steps[index + 1].command == step.command:
            return index + 1, "repeated"
        return index + 1, "unlisted" if "No such file" in step.observation else "ignored"
    return _last(range(len(trace.steps))), "ignored"


def _missed_verify(trace: Trace) -> tuple[int | None, str]:
    writes = [
        index for index, step in enumerate(trace.steps) if written(step.command) and not step.failed
    ]
    names = {name for index in writes for name in written(trace.steps[index].command)}
    looks = [index for index, step in enumerate(trace.steps) if looks_at(step.command)]
    at_result = [index for index in looks if names & set(looks_at(trace.steps[index].command))]
    if at_result:
        return at_result[0], "early"
    after = [index for index in looks if writes and index > writes[0]]
    return (after[0], "elsewhere") if after else (_last(writes), "never")


def _missed_finish(trace: Trace) -> tuple[int | None, str]:
    return _last(range(len(trace.steps))), "submitted" if trace.submitted else "cut"


def _missed_thrift(trace: Trace) -> tuple[int | None, str]:
    for index, step in enumerate(trace.steps):
        if trace.shows(Behaviour.THRIFT, 0, index + 1, submitted=True) is False:
            is_repeat = index > 0 and trace.steps[index - 1].command == step.command
            return index, "repeated" if is_repeat else "idle"
    return _last(range(len(trace.steps))), "open"


_MISSED = {
    Behaviour.READ: _missed_read,
    Behaviour.HEED: _missed_heed,
    Behaviour.VERIFY: _missed_verify,
    Behaviour.FINISH: _missed_finish,
    Behaviour.THRIFT: _missed_thrift,
}
"""Which step tells most about a behaviour that is lacking, and the name of the mode."""


def answer_analysis(payload: InitialAnalysisPayload) -> str:
    """One diagnostics object: gaps and strategies, nothing covered."""
    return dump_json(_diagnostics(find(payload.trajectory), ()))


def answer_evaluation(payload: EvaluationPayload) -> str:
    """One verdict per rubric asked for, then diagnostics if they are asked for."""
    findings = find(payload.trajectory)
    lines = [_verdict(rubric, findings) for rubric in payload.rubrics]
    if payload.asks_diagnostics:
        lines.append(_diagnostics(findings, payload.pool))
    return dump_jsonl(lines)


def _verdict(rubric: RubricView, findings: tuple[Finding, ...]) -> dict[str, Any]:
    requirement = recognise(rubric)
    for finding in findings:
        if finding.requirement is requirement:
            outcome = _OUTCOMES[finding.shown]
            return {"id": rubric.id, "reason": finding.reason, "verdict": outcome.value}
    return {
        "id": rubric.id,
        "reason": NOT_UNDERSTOOD,
        "verdict": Outcome.NOT_APPLICABLE.value,
    }


def _diagnostics(findings: tuple[Finding, ...], pool: Iterable[RubricView]) -> dict[str, Any]:
    ids = covered(pool)
    return {
        "diagnostics": [
            {
                "kind": "strategy" if finding.shown else "gap",
                "behaviour": (
                    finding.requirement.strategy if finding.shown else finding.requirement.gap
                ),
                "signal": finding.reason,
                "covered_by": ids.get(finding.requirement.behaviour),
            }
            for finding in findings
            if finding.shown is not None
        ]
    }
