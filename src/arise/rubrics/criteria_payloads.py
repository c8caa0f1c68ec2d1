"""What the requests of the OnlineRubrics baseline are rendered from.

Answers are text, as for the method's own requests (`payloads.py`): extraction and merge give
`{"criteria": [{"quote", "criterion", "weight"}]}`, a reference answer is free text.
"""

from __future__ import annotations

from dataclasses import dataclass

from arise.rubrics.payloads import TrajectoryView
from arise.types import Criterion


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionPayload:
    """Two attempts at one task.

    Attributes:
        current: By the policy in training.
        reference: By the initial policy or the reflection model.
        covered: What needs no criterion: the verifier's outcome.
    """

    current: TrajectoryView
    reference: TrajectoryView
    covered: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePayload:
    """The criteria of all pairs of one task.

    Attributes:
        instruction: What the task asks for.
        criteria: As extracted, in the order of the pairs.
        max_criteria: Most criteria to keep.
    """

    instruction: str
    criteria: tuple[Criterion, ...]
    max_criteria: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePayload:
    """A task that the reflection model answers itself."""

    instruction: str
