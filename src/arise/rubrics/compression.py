"""Findings small enough for one reflection request, without losing one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arise.llm.tokens import cut_middle_to_tokens, estimate_tokens
from arise.rubrics.payloads import GenerationRecord
from arise.rubrics.trace import common_limit
from arise.types import Diagnostic

MIN_PIECE_TOKENS = 32


def compress(
    records: Sequence[GenerationRecord], budget_tokens: int
) -> tuple[GenerationRecord, ...]:
    """The records with at most `budget_tokens` estimated tokens of text.

    Signals are cut first, the longest first, then the instructions' beginnings, then the
    behaviours. No record and no finding goes, and no piece is cut below `MIN_PIECE_TOKENS`, so a
    very small budget is exceeded.

    Args:
        records: As drawn.
        budget_tokens: For instructions, behaviours and signals together, by `estimate_tokens`.
    """
    current = tuple(records)
    for part in ("signal", "instruction", "behaviour"):
        sizes = {name: _sizes(current, name) for name in ("signal", "instruction", "behaviour")}
        total = sum(map(sum, sizes.values()))
        if total <= budget_tokens:
            break
        limit = common_limit(sizes[part], budget_tokens - (total - sum(sizes[part])))
        limit = max(limit, MIN_PIECE_TOKENS)
        current = tuple(_cut(record, part, limit) for record in current)
    return current


def _sizes(records: Sequence[GenerationRecord], part: str) -> list[int]:
    if part == "instruction":
        return [estimate_tokens(record.instruction) for record in records]
    return [estimate_tokens(getattr(d, part)) for record in records for d in record.diagnostics]


def _cut(record: GenerationRecord, part: str, limit: int) -> GenerationRecord:
    if part == "instruction":
        return replace(record, instruction=cut_middle_to_tokens(record.instruction, limit))
    findings: list[Diagnostic] = []
    for finding in record.diagnostics:
        text: dict[str, Any] = {part: cut_middle_to_tokens(getattr(finding, part), limit)}
        findings.append(replace(finding, **text))
    return replace(record, diagnostics=tuple(findings))
