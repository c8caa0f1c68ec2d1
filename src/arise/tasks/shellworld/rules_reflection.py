"""The reflection's side of the offline stand-in: new pairs and new skill texts from findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from arise.errors import ConfigError, JudgeError
from arise.llm.text import dump_json
from arise.rubrics.payloads import (
    FailureRecord,
    GenerationPayload,
    GenerationRecord,
    RefinementPayload,
)
from arise.rubrics.proposals import fold
from arise.tasks.shellworld.rules_ladders import Mode
from arise.tasks.shellworld.rules_texts import REQUIREMENTS, Requirement, recognise

MAX_CITED_RECORDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLimits:
    """When a behaviour is worth a pair.

    Attributes:
        max_new_pairs_per_update: Most pairs proposed at once; key
            `reflection.max_new_pairs_per_update`.
        min_gap_share: Smallest share of records with the gap among those that show either the
            gap or the strategy, in [0, 1]; key `reflection.min_gap_share`.
        min_gap_records: Fewest records with the gap; key `reflection.min_gap_records`.

    Raises:
        ConfigError: A limit is out of range.
    """

    max_new_pairs_per_update: int
    min_gap_share: float
    min_gap_records: int

    def __post_init__(self) -> None:
        for name in ("max_new_pairs_per_update", "min_gap_records"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"reflection.{name} must be an integer >= 1, got {value!r}")
        share = self.min_gap_share
        if not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
            raise ConfigError(f"reflection.min_gap_share must be in [0, 1], got {share!r}")


@dataclass(slots=True, kw_only=True)
class _Evidence:
    """Records of a window that speak about one requirement."""

    requirement: Requirement
    issues: list[GenerationRecord] = field(default_factory=list)
    contrasts: list[GenerationRecord] = field(default_factory=list)

    @property
    def gap_share(self) -> float:
        return len(self.issues) / (len(self.issues) + len(self.contrasts))


def answer_generation(payload: GenerationPayload, limits: GenerationLimits) -> str:
    """Pairs for behaviours that keep lacking and that no rubric covers, the most frequent first.

    Args:
        payload: Records and pool.
        limits: When a behaviour is worth a pair.

    Returns:
        An object with `pairs`, at most `min(max_new_pairs_per_update, payload.max_pairs)`.
    """
    candidates = [
        evidence
        for evidence in (_collect(requirement, payload) for requirement in REQUIREMENTS)
        if len(evidence.issues) >= limits.min_gap_records
        and evidence.gap_share >= limits.min_gap_share
        and not any(evidence.requirement.is_named_by(rubric) for rubric in payload.pool)
    ]
    # The sort is stable: requirements with equally many gaps keep their order.
    candidates.sort(key=lambda evidence: -len(evidence.issues))
    num_pairs = min(limits.max_new_pairs_per_update, payload.max_pairs)
    return dump_json({"pairs": [_pair(evidence) for evidence in candidates[:num_pairs]]})


def _collect(requirement: Requirement, payload: GenerationPayload) -> _Evidence:
    evidence = _Evidence(requirement=requirement)
    for record in payload.records:
        named = {
            (entry.kind, fold(entry.behaviour))
            for entry in record.diagnostics
            if entry.covered_by is None
        }
        if ("gap", fold(requirement.gap)) in named:
            evidence.issues.append(record)
        elif ("strategy", fold(requirement.strategy)) in named:
            evidence.contrasts.append(record)
    return evidence


def _pair(evidence: _Evidence) -> dict[str, Any]:
    requirement = evidence.requirement
    return {
        "title": requirement.title,
        "capability": requirement.capability,
        "applicability": requirement.applicability,
        "fail_condition": requirement.fail_condition,
        "pass_condition": requirement.pass_condition,
        "skill": requirement.skill,
        "issue_records": _cited(evidence.issues),
        "contrast_records": _cited(evidence.contrasts),
    }


def _cited(records: Sequence[GenerationRecord]) -> list[int]:
    """Numbers of a few records, one of each task before a second one of any."""
    num_before: Counter[str] = Counter()
    order: list[tuple[int, int]] = []
    for record in records:
        order.append((num_before[record.task_id], record.number))
        num_before[record.task_id] += 1
    return sorted(number for _, number in sorted(order)[:MAX_CITED_RECORDS])


def answer_refinement(payload: RefinementPayload) -> str:
    """A new skill text against the way in which most of the failures went.

    Texts get more concrete with each revision and then start again; the old text never comes back
    at once.

    Args:
        payload: Criterion, old text and failures.

    Returns:
        An object with `skill`.

    Raises:
        JudgeError: The criterion is not one of the stand-in's.
    """
    requirement = recognise(payload.rubric)
    if requirement is None:
        raise JudgeError(
            f"the offline stand-in reflection=rules does not understand the rubric "
            f"{payload.rubric.title!r} and cannot refine its skill; use reflection=openai"
        )
    ladder = _most_frequent(requirement, payload.failures).ladder
    first = payload.revision % len(ladder)
    texts = (*ladder[first:], *ladder[:first])
    text = next(text for text in texts if fold(text) != fold(payload.skill))
    return dump_json({"skill": text})


def _most_frequent(requirement: Requirement, failures: Sequence[FailureRecord]) -> Mode:
    """The mode that most failures show; among equals, and without any, the first in order."""
    counts: Counter[str] = Counter()
    for failure in failures:
        findings = [
            entry.signal
            for entry in failure.record.diagnostics
            if fold(entry.behaviour) == fold(requirement.gap)
        ]
        # The end of a text, since a command that is quoted before it may say anything.
        seen = next(
            (
                mode.name
                for text in (failure.reason, *findings)
                for mode in requirement.modes
                if fold(text).endswith(mode.observed)
            ),
            None,
        )
        if seen is not None:
            counts[seen] += 1
    return max(requirement.modes, key=lambda mode: counts[mode.name])
