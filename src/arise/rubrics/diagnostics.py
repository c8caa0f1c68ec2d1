"""The evidence buffer B_k: what the rollouts of an update window showed (Appendix B.3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from arise.errors import ConfigError
from arise.llm.text import clean_text, cut_middle
from arise.rubrics.compression import compress
from arise.rubrics.payloads import FailureRecord, GenerationRecord, SkillUse
from arise.types import Diagnostic, Outcome, Review, Task, Trajectory

if TYPE_CHECKING:
    import numpy as np

    Generator = random.Random | np.random.Generator

INSTRUCTION_CHARS = 400
NO_VERDICT = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRecord:
    """One trained trajectory's evidence.

    Attributes:
        iteration: k of the iteration that trained it.
        task_id: The task.
        rollout: Slot j in the group.
        tags: Task types.
        instruction: Beginning of the instruction.
        is_success: The outcome; withheld from generation, shown to refinement.
        diagnostics: Gaps and strategies; `covered_by` is the coverage flag.
        skills: (pair id, revision) of every skill that was injected.
        verdicts: (pair id, outcome, reason) of every valid verdict.
        prompt_hash: Hash of the judge's prompt that gave the answer.
        model: Name of the judge model.
    """

    iteration: int
    task_id: str
    rollout: int
    tags: tuple[str, ...]
    instruction: str
    is_success: bool
    diagnostics: tuple[Diagnostic, ...]
    skills: tuple[tuple[int, int], ...]
    verdicts: tuple[tuple[int, str, str], ...]
    prompt_hash: str
    model: str = ""

    def verdict_of(self, pair_id: int) -> tuple[str, str]:
        """Outcome and reason for a pair; outcome `"invalid"` where there is no verdict."""
        for id_, outcome, reason in self.verdicts:
            if id_ == pair_id:
                return outcome, reason
        return NO_VERDICT, ""

    def for_generation(self, number: int) -> GenerationRecord:
        """The record without its outcome, as number `number` of a request."""
        return GenerationRecord(
            number=number,
            iteration=self.iteration,
            task_id=self.task_id,
            rollout=self.rollout,
            task_types=self.tags,
            instruction=self.instruction,
            diagnostics=self.diagnostics,
            skills=tuple(
                SkillUse(pair_id=pair_id, revision=revision, verdict=self.verdict_of(pair_id)[0])
                for pair_id, revision in self.skills
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Primitives only."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EvidenceRecord:
        """The record that `to_dict` described."""
        return cls(
            **{
                **data,
                "tags": tuple(data["tags"]),
                "diagnostics": tuple(Diagnostic(**entry) for entry in data["diagnostics"]),
                "skills": tuple((int(a), int(b)) for a, b in data["skills"]),
                "verdicts": tuple((int(a), str(b), str(c)) for a, b, c in data["verdicts"]),
            }
        )


def _choose(rng: Generator, num_items: int, num_chosen: int) -> list[int]:
    """Sorted indices, uniform without replacement."""
    if isinstance(rng, random.Random):
        return sorted(rng.sample(range(num_items), num_chosen))
    return sorted(int(index) for index in rng.choice(num_items, size=num_chosen, replace=False))


class EvidenceBuffer:
    """The records since the last scheduled update, in the order of training.

    Args:
        max_records: Most records that one reflection request sees; key `rubrics.max_records`.
        budget_tokens: Most tokens of their texts, estimated; `None` leaves them as they are. Key
            `rubrics.evidence_budget_tokens`.

    Raises:
        ConfigError: A limit is below 1.
    """

    def __init__(self, *, max_records: int, budget_tokens: int | None = None) -> None:
        for key, value in (("max_records", max_records), ("evidence_budget_tokens", budget_tokens)):
            if key == "evidence_budget_tokens" and value is None:
                continue
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"rubrics.{key} must be an integer >= 1, got {value!r}")
        self._max_records = max_records
        self._budget_tokens = budget_tokens
        self._records: list[EvidenceRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> tuple[EvidenceRecord, ...]:
        """All records of the window."""
        return tuple(self._records)

    def observe(
        self,
        iteration: int,
        task: Task,
        trajectory: Trajectory,
        review: Review,
    ) -> None:
        """Add one trained trajectory; call in (task, rollout) order."""
        self._records.append(
            EvidenceRecord(
                iteration=iteration,
                task_id=trajectory.task_id,
                rollout=trajectory.rollout,
                tags=tuple(task.tags),
                instruction=cut_middle(
                    clean_text(trajectory.instruction or task.instruction), INSTRUCTION_CHARS
                ),
                is_success=trajectory.is_success,
                diagnostics=review.diagnostics,
                skills=tuple((skill.pair_id, skill.revision) for skill in trajectory.skills),
                verdicts=tuple(
                    (verdict.pair_id, verdict.outcome.value, verdict.reason)
                    for verdict in review.verdicts
                ),
                prompt_hash=review.prompt_hash,
                model=review.model,
            )
        )

    def draw(self, rng: Generator) -> tuple[GenerationRecord, ...]:
        """Records for generation: uniform without replacement, whatever their outcome.

        Only records with a diagnostic take part. They come in window order, numbered from 1.

        Args:
            rng: The curriculum's own generator; used only if there are more than `max_records`.
        """
        eligible = [record for record in self._records if record.diagnostics]
        if len(eligible) > self._max_records:
            chosen = _choose(rng, len(eligible), self._max_records)
            eligible = [eligible[index] for index in chosen]
        return self._compressed(
            [record.for_generation(number) for number, record in enumerate(eligible, start=1)]
        )

    def _compressed(self, records: Sequence[GenerationRecord]) -> tuple[GenerationRecord, ...]:
        if self._budget_tokens is None:
            return tuple(records)
        return compress(records, self._budget_tokens)

    def failures(self, pair_id: int, revision: int) -> tuple[FailureRecord, ...]:
        """Evidence for refining a skill, failed tasks first, each part in window order.

        Args:
            pair_id: The pair.
            revision: Its current revision; verdicts under an older text are no evidence.

        Returns:
            At most `max_records` records in which this revision was injected and the verdict
            was fail, numbered from 1.
        """
        matching = [
            record
            for record in self._records
            if (pair_id, revision) in record.skills
            and record.verdict_of(pair_id)[0] == Outcome.FAIL
        ]
        matching.sort(key=lambda record: record.is_success)
        del matching[self._max_records :]
        shown = self._compressed(
            [record.for_generation(number) for number, record in enumerate(matching, start=1)]
        )
        return tuple(
            FailureRecord(
                record=compressed,
                reason=record.verdict_of(pair_id)[1],
                is_success=record.is_success,
            )
            for record, compressed in zip(matching, shown, strict=True)
        )

    def num_trajectories_by_tag(self) -> tuple[tuple[str, int], ...]:
        """Trajectories per task type, by tag."""
        return tuple(sorted(Counter(tag for r in self._records for tag in r.tags).items()))

    def num_tasks(self) -> int:
        """Distinct tasks in the window."""
        return len({record.task_id for record in self._records})

    def restart(self) -> None:
        """Forget the window."""
        self._records.clear()

    def state_dict(self) -> dict[str, Any]:
        """Primitives only."""
        return {"records": [record.to_dict() for record in self._records]}

    def load_state_dict(self, state: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Become the buffer that `state_dict` described."""
        self._records = [EvidenceRecord.from_dict(data) for data in state["records"]]
