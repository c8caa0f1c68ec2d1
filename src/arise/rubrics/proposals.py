"""What the reflection model proposes, and whether the pool may take it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from arise.rubrics.pair import Rubric, RubricSkillPair, Skill
from arise.types import Capability


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRef:
    """Names one record of the evidence buffer: which rollout of which iteration."""

    task_id: str
    iteration: int
    rollout: int

    def to_dict(self) -> dict[str, Any]:
        """Primitives for an event."""
        return {"task_id": self.task_id, "iteration": self.iteration, "rollout": self.rollout}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairProposal:
    """A pair as the model wrote it: no id, nothing checked yet; a missing field is empty.

    Attributes:
        title: Short name.
        capability: One of the five, if the model kept to them.
        applicability: When the rubric applies.
        fail_condition: What a trace shows that misses the requirement.
        pass_condition: What a trace shows that meets it.
        skill: Guidance text.
        issues: Records that support the fail condition.
        contrasts: Records that support the pass condition.
    """

    title: str
    capability: str
    applicability: str
    fail_condition: str
    pass_condition: str
    skill: str
    issues: tuple[EvidenceRef, ...] = ()
    contrasts: tuple[EvidenceRef, ...] = ()

    @property
    def texts(self) -> dict[str, str]:
        """The fields a person may want to read, by name."""
        return {
            "title": self.title,
            "capability": self.capability,
            "applicability": self.applicability,
            "fail_condition": self.fail_condition,
            "pass_condition": self.pass_condition,
            "skill": self.skill,
        }

    @property
    def evidence(self) -> dict[str, list[dict[str, Any]]]:
        """The supporting records, as primitives."""
        return {
            "issues": [reference.to_dict() for reference in self.issues],
            "contrasts": [reference.to_dict() for reference in self.contrasts],
        }

    def to_pair(self, *, pair_id: int, step: int) -> RubricSkillPair:
        """The pair that enters the pool: hidden, without history. Call after `reject_reason`."""
        return RubricSkillPair(
            id=pair_id,
            title=self.title,
            capability=Capability(fold(self.capability)),
            rubric=Rubric(
                applicability=self.applicability,
                fail_condition=self.fail_condition,
                pass_condition=self.pass_condition,
            ),
            skill=Skill(text=self.skill),
            created_at=step,
        )


def fold(text: str) -> str:
    """`text` without differences of case and white space, for comparing titles.

    Example:
        >>> fold("  Read \\n BACK")
        'read back'
    """
    return " ".join(text.casefold().split())


def reject_reason(
    proposal: PairProposal, *, taken_titles: Collection[str], max_text_chars: int
) -> str | None:
    """Why `proposal` is not a valid new pair; `None` if it is.

    Args:
        proposal: What the model wrote.
        taken_titles: Folded titles of the pool before retirement and of the pairs already
            accepted from the same answer.
        max_text_chars: Longest text of any field, in characters.

    Returns:
        `"empty_field"`, `"unknown_capability"`, `"too_long"` or `"duplicate_title"`.
    """
    if any(not text.strip() for text in proposal.texts.values()):
        return "empty_field"
    if fold(proposal.capability) not in {capability.value for capability in Capability}:
        return "unknown_capability"
    if any(len(text) > max_text_chars for text in proposal.texts.values()):
        return "too_long"
    if fold(proposal.title) in taken_titles:
        return "duplicate_title"
    return None
