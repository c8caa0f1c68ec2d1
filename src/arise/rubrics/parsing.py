"""Answers of the judge and of the reflection model as typed values; never an invented verdict.

What counts as which verdict: `pass`, `passed`; `fail`, `failed`; `not_applicable`, `n/a`, `na`,
`not applicable`, `inapplicable`, in any case, with hyphen, underscore or space. Anything else,
booleans and numbers included, is no verdict. A rubric without exactly one meaning is *invalid*.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arise.llm.text import clean_text, cut_middle, without_thinking
from arise.rubrics.lenient_json import read_objects
from arise.rubrics.proposals import EvidenceRef, PairProposal, fold
from arise.types import Diagnostic, Outcome, Verdict

MAX_REASON_CHARS = 2_000
MAX_DIAGNOSTIC_CHARS = 600
MAX_DIAGNOSTICS = 20
_ID = re.compile(r"(?:rubric|pair|record)?[ _-]*[r#]?(\d{1,9})")
_OUTCOMES = {
    "pass": Outcome.PASS,
    "passed": Outcome.PASS,
    "fail": Outcome.FAIL,
    "failed": Outcome.FAIL,
    "notapplicable": Outcome.NOT_APPLICABLE,
    "inapplicable": Outcome.NOT_APPLICABLE,
    "na": Outcome.NOT_APPLICABLE,
}
_KINDS = {"gap": "gap", "issue": "gap", "strategy": "strategy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer:
    """What an answer to an analysis or evaluation prompt says.

    Attributes:
        verdicts: Valid verdicts for the rubrics asked for, in id order.
        diagnostics: At most `MAX_DIAGNOSTICS`, in the order given.
        has_diagnostics: Whether a diagnostics object was there, even an empty one.
        problems: Number of occurrences by kind: `broken_lines`, `unknown_ids`,
            `unreadable_verdicts`, `duplicates`, `contradictions`, `unreadable_diagnostics`.
    """

    verdicts: tuple[Verdict, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    has_diagnostics: bool = False
    problems: Mapping[str, int]


def parse_judge_answer(
    text: str, *, asked_ids: Collection[int], pool_ids: Collection[int]
) -> JudgeAnswer:
    """Read verdicts and diagnostics, line by line.

    Two lines for one rubric that agree are one verdict (the first reason stays); two that
    contradict each other are none. A line with an id that was not asked for is ignored and
    counted.

    Args:
        text: The answer.
        asked_ids: Rubrics that this request asked about.
        pool_ids: Pairs that a diagnostic may name as covering it.

    Example:
        >>> answer = parse_judge_answer(
        ...     '{"id": 1, "reason": "read back at step 3", "verdict": "pass"}',
        ...     asked_ids=[1, 2],
        ...     pool_ids=[1, 2],
        ... )
        >>> [(verdict.pair_id, verdict.outcome.value) for verdict in answer.verdicts]
        [(1, 'pass')]
    """
    objects, num_broken = read_objects(without_thinking(text))
    problems = Counter(broken_lines=num_broken)
    verdicts: dict[int, Verdict] = {}
    contradicted: set[int] = set()
    diagnostics: list[Any] = []
    has_diagnostics = False
    for entry in _unpacked(objects):
        if isinstance(entry.get("diagnostics"), list):
            has_diagnostics = True
            diagnostics += entry["diagnostics"]
        if "behaviour" in entry or "behavior" in entry:
            has_diagnostics = True
            diagnostics.append(entry)
        if _first(entry, "verdict", "outcome") is not None:
            _add_verdict(entry, asked_ids, verdicts, contradicted, problems)
    read = [_diagnostic(entry, pool_ids) for entry in diagnostics]
    problems["unreadable_diagnostics"] += sum(entry is None for entry in read)
    problems["contradictions"] += len(contradicted)
    return JudgeAnswer(
        verdicts=tuple(verdicts[id_] for id_ in sorted(verdicts) if id_ not in contradicted),
        diagnostics=tuple(entry for entry in read if entry is not None)[:MAX_DIAGNOSTICS],
        has_diagnostics=has_diagnostics,
        problems={kind: count for kind, count in problems.items() if count},
    )


def _unpacked(objects: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The objects, with the entries of a `verdicts` list in place of being nested."""
    entries: list[Mapping[str, Any]] = []
    for entry in objects:
        if isinstance(entry.get("verdicts"), list):
            entries += [inner for inner in entry["verdicts"] if isinstance(inner, dict)]
        entries.append(entry)
    return entries


def _add_verdict(
    entry: Mapping[str, Any],
    asked_ids: Collection[int],
    verdicts: dict[int, Verdict],
    contradicted: set[int],
    problems: Counter[str],
) -> None:
    id_ = read_id(_first(entry, "id", "rubric_id", "pair_id"))
    if id_ is None or id_ not in asked_ids:
        problems["unknown_ids"] += 1
        return
    outcome = read_outcome(_first(entry, "verdict", "outcome"))
    if outcome is None:
        problems["unreadable_verdicts"] += 1
        return
    if id_ in verdicts:
        problems["duplicates"] += 1
        if verdicts[id_].outcome is not outcome:
            contradicted.add(id_)
        return
    reason = _text(_first(entry, "reason", "evidence"), MAX_REASON_CHARS)
    verdicts[id_] = Verdict(pair_id=id_, outcome=outcome, reason=reason)


def read_id(value: Any) -> int | None:
    """A rubric or record number out of 3, "3", "r3", "#3" or "rubric 3"; else `None`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        match = _ID.fullmatch(value.strip().lower())
        return int(match.group(1)) if match else None
    return None


def read_outcome(value: Any) -> Outcome | None:
    """A verdict out of its spelling (see the module); `None` if it is not one."""
    if not isinstance(value, str):
        return None
    return _OUTCOMES.get(re.sub(r"[\s_/.\-]+", "", value.casefold()))


def _diagnostic(entry: Any, pool_ids: Collection[int]) -> Diagnostic | None:
    if not isinstance(entry, dict):
        return None
    kind = _KINDS.get(_text(entry.get("kind"), 40).strip().casefold())
    behaviour = _text(_first(entry, "behaviour", "behavior"), MAX_DIAGNOSTIC_CHARS)
    if kind is None or not behaviour:
        return None
    covered_by = read_id(entry.get("covered_by"))
    return Diagnostic(
        kind=kind,
        behaviour=behaviour,
        signal=_text(entry.get("signal"), MAX_DIAGNOSTIC_CHARS),
        covered_by=covered_by if covered_by in pool_ids else None,
    )


def parse_proposals(
    text: str, *, records: Mapping[int, EvidenceRef]
) -> tuple[tuple[PairProposal, ...], bool]:
    """New pairs out of a generation answer.

    Reads `{"pairs": [...]}`, an array, or one object per line; rubric fields may be nested under
    `rubric`. An id that the model writes is ignored: ids are the pool's. The very same object
    given twice counts once.

    Args:
        text: The answer.
        records: Buffer record behind each record number of the request.

    Returns:
        The proposals as written, and whether the answer had the requested form at all (an empty
        list of pairs has).
    """
    entries: list[Mapping[str, Any]] = []
    is_answer = False
    text = without_thinking(text)
    for entry in read_objects(text)[0]:
        if isinstance(entry.get("pairs"), list):
            is_answer = True
            entries += [inner for inner in entry["pairs"] if isinstance(inner, dict)]
        elif {"title", "skill", "rubric"} & entry.keys():
            is_answer = True
            entries.append(entry)
    if not entries and fold(text).strip("`json \n") == "[]":
        is_answer = True
    proposals = [_proposal(entry, records) for entry in entries]
    return tuple(dict.fromkeys(proposals)), is_answer


def _proposal(entry: Mapping[str, Any], records: Mapping[int, EvidenceRef]) -> PairProposal:
    rubric = entry.get("rubric")
    fields = {**entry, **rubric} if isinstance(rubric, dict) else entry
    skill = entry.get("skill")
    return PairProposal(
        title=_text(fields.get("title")),
        capability=_text(fields.get("capability")),
        applicability=_text(fields.get("applicability")),
        fail_condition=_text(fields.get("fail_condition")),
        pass_condition=_text(fields.get("pass_condition")),
        skill=_text(skill.get("text") if isinstance(skill, dict) else skill),
        issues=_references(entry.get("issue_records"), records),
        contrasts=_references(entry.get("contrast_records"), records),
    )


def _references(value: Any, records: Mapping[int, EvidenceRef]) -> tuple[EvidenceRef, ...]:
    if not isinstance(value, list):
        return ()
    numbers = dict.fromkeys(read_id(entry) for entry in value)
    return tuple(records[number] for number in numbers if number is not None and number in records)


def parse_refined_skill(text: str, *, old_text: str) -> str | None:
    """The new skill text out of `{"skill": "..."}`.

    `None` if there is no such object, the text is empty, or it is the old one again: prose such
    as a refusal must not become guidance.
    """
    for entry in read_objects(without_thinking(text))[0]:
        skill = entry.get("skill")
        new_text = _text(skill.get("text") if isinstance(skill, dict) else skill)
        if new_text and fold(new_text) != fold(old_text):
            return new_text
    return None


def _first(entry: Mapping[str, Any], *keys: str) -> Any:
    return next((entry[key] for key in keys if key in entry), None)


def _text(value: Any, limit: int | None = None) -> str:
    text = clean_text(value).strip() if isinstance(value, str) else ""
    return text if limit is None else cut_middle(text, limit)


def problems_line(problems: Mapping[str, int], missing_ids: Sequence[int]) -> str:
    """Missing verdicts and problems in one line for `Review.error`; empty if there are none."""
    parts = []
    if missing_ids:
        parts.append(f"no valid verdict for rubrics {', '.join(map(str, missing_ids))}")
    parts += [f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(problems.items())]
    return "; ".join(parts)
