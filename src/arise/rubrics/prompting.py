"""From typed payloads to messages: the five prompt files and the values they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arise.llm.chat import ChatRequest, Purpose
from arise.llm.prompts import read_prompt
from arise.llm.text import dump_json, dump_jsonl
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.payloads import (
    AnnotationPayload,
    EvaluationPayload,
    GenerationPayload,
    GenerationRecord,
    InitialAnalysisPayload,
    RefinementPayload,
    RubricView,
    TrajectoryView,
)
from arise.rubrics.trace import step_lines
from arise.types import Diagnostic

BUILT_IN = Path(__file__).parent / "prompts"


class Prompts:
    """The prompt of every purpose, read once.

    All data goes in as JSON, one value per line inside a fenced block, so that nothing in a trace,
    a skill or a diagnostic can end its block or pass for a template.

    Args:
        directory: Folder with the five files; `None` for the built-in ones. Config key
            `rubrics.prompts_dir`.

    Raises:
        ConfigError: A file is missing or malformed.
    """

    def __init__(self, *, directory: str | Path | None = None) -> None:
        folder = BUILT_IN if directory is None else Path(directory)
        self._prompts = {purpose: read_prompt(purpose, folder) for purpose in Purpose}

    def sha256(self, purpose: Purpose) -> str:
        """Hash of the prompt file, to be recorded with what it produced."""
        return self._prompts[purpose].sha256

    def initial_analysis(self, payload: InitialAnalysisPayload) -> ChatRequest:
        """Diagnostics of one trajectory, no verdicts."""
        values = _trajectory_values(payload.trajectory)
        return self._request(Purpose.INITIAL_ANALYSIS, payload, values)

    def evaluation(self, payload: EvaluationPayload) -> ChatRequest:
        """Verdicts on one trajectory, with diagnostics if the payload asks for them."""
        values = {
            **_trajectory_values(payload.trajectory),
            "rubrics": dump_jsonl([_criterion(rubric) for rubric in payload.rubrics]),
            "pool": dump_jsonl([_criterion(rubric) for rubric in payload.pool]),
            "asks_diagnostics": payload.asks_diagnostics,
        }
        return self._request(Purpose.RUBRIC_EVALUATION, payload, values)

    def generation(self, payload: GenerationPayload) -> ChatRequest:
        """New pairs from the window's diagnostics (Eq. 4)."""
        values = {
            "records": dump_jsonl([_record(record) for record in payload.records]),
            "pool": dump_jsonl([_criterion(rubric) for rubric in payload.pool]),
            "max_pairs": payload.max_pairs,
            "metadata": dump_json(asdict(payload.metadata)),
        }
        return self._request(Purpose.GENERATION, payload, values)

    def refinement(self, payload: RefinementPayload) -> ChatRequest:
        """A new text for one skill (Eq. 8)."""
        failures = [
            {
                **_record(failure.record),
                "judge_reason": failure.reason,
                "task_solved": failure.is_success,
            }
            for failure in payload.failures
        ]
        values = {
            "rubric": dump_json(_criterion(payload.rubric)),
            "skill": dump_json({"revision": payload.revision, "skill": payload.skill}),
            "failures": dump_jsonl(failures),
            "context": dump_jsonl([_record(record) for record in payload.context]),
            "metadata": dump_json(asdict(payload.metadata)),
        }
        return self._request(Purpose.REFINEMENT, payload, values)

    def annotation(self, payload: AnnotationPayload) -> ChatRequest:
        """Task types of one task (Appendix C.2)."""
        task = {
            "task_id": payload.task_id,
            "instruction": payload.instruction,
            "available_skills": payload.skill_names,
            "artifact_paths": payload.artifact_paths,
        }
        values = {
            "registry": dump_jsonl([asdict(entry) for entry in payload.registry]),
            "task": dump_json(task),
            "is_second_pass": payload.is_second_pass,
        }
        return self._request(Purpose.ANNOTATION, payload, values)

    def _request(self, purpose: Purpose, payload: Any, values: dict[str, Any]) -> ChatRequest:
        return ChatRequest(
            purpose=purpose,
            messages=self._prompts[purpose].render(values),
            payload=payload,
        )


def rubric_views(pairs: Sequence[RubricSkillPair]) -> tuple[RubricView, ...]:
    """The pairs without their skills."""
    return tuple(
        RubricView(
            id=pair.id,
            title=pair.title,
            capability=pair.capability.value,
            applicability=pair.rubric.applicability,
            fail_condition=pair.rubric.fail_condition,
            pass_condition=pair.rubric.pass_condition,
        )
        for pair in pairs
    )


def _trajectory_values(view: TrajectoryView) -> dict[str, Any]:
    return {
        "task": dump_json({"instruction": view.instruction}),
        "trace": dump_jsonl(step_lines(view)),
        "note": view.note,
        "finish_reason": view.finish_reason,
        "outcome": "solved" if view.is_success else "not solved",
    }


def _criterion(rubric: RubricView) -> dict[str, Any]:
    return {
        "id": rubric.id,
        "title": rubric.title,
        "capability": rubric.capability,
        "applies": rubric.applicability,
        "fail_if": rubric.fail_condition,
        "pass_if": rubric.pass_condition,
    }


def _record(record: GenerationRecord) -> dict[str, Any]:
    return {
        "record": record.number,
        "task_id": record.task_id,
        "task_types": record.task_types,
        "task": record.instruction,
        "diagnostics": [_finding(entry) for entry in record.diagnostics],
        "skills_shown": [
            {"pair": use.pair_id, "revision": use.revision, "verdict": use.verdict}
            for use in record.skills
        ],
    }


def _finding(entry: Diagnostic) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "behaviour": entry.behaviour,
        "signal": entry.signal,
        "covered_by": entry.covered_by,
    }
