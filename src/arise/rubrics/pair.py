"""A rubric and its skill: one observable requirement, judged by the one, taught by the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from arise.errors import ConfigError
from arise.types import Capability, InjectedSkill


class SkillState(StrEnum):
    """Whether a skill is put in the system prompt. Its rubric is judged either way."""

    HIDDEN = "hidden"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """r_i: when the requirement applies, and what the trace shows if it is missed or met."""

    applicability: str
    fail_condition: str
    pass_condition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """s_i: the guidance towards the same requirement.

    Attributes:
        text: What the agent is told while the skill is active.
        state: Hidden or active.
        revision: 0 when created, one more with each refinement; verdicts given under an older
            revision are no evidence about this text.
    """

    text: str
    state: SkillState = SkillState.HIDDEN
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvent:
    """One line of a pair's history: what an update did, at which window counts of Eq. 2."""

    step: int
    type: str
    num_passes: int = 0
    num_applicable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricSkillPair:
    """A member (r_i, s_i) of the pool P_k (Eq. 3).

    Attributes:
        id: Assigned by the pool, never reused.
        title: Short name; unique in the pool up to case and white space.
        capability: c, the primary behaviour that the rubric evaluates.
        rubric: r_i; never changes.
        skill: s_i.
        created_at: Step of the update that accepted the pair (k+1).
        history: What every update since then did with it, oldest first.

    Example:
        >>> pair = RubricSkillPair(
        ...     id=1,
        ...     title="Read back",
        ...     capability=Capability.VERIFICATION,
        ...     rubric=Rubric(
        ...         applicability="The task asks for a file.",
        ...         fail_condition="The file is never looked at after it was written.",
        ...         pass_condition="The file is read after the last write.",
        ...     ),
        ...     skill=Skill(text="Read the file back before you finish."),
        ...     created_at=10,
        ... )
        >>> RubricSkillPair.from_dict(pair.to_dict(), where="example") == pair
        True
    """

    id: int
    title: str
    capability: Capability
    rubric: Rubric
    skill: Skill
    created_at: int
    history: tuple[PairEvent, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether the skill is injected."""
        return self.skill.state is SkillState.ACTIVE

    @property
    def injected(self) -> InjectedSkill:
        """The skill as a system prompt shows it now."""
        return InjectedSkill(pair_id=self.id, revision=self.skill.revision, text=self.skill.text)

    def with_event(self, event: PairEvent, **skill_changes: Any) -> RubricSkillPair:
        """The pair after `event`, with fields of its skill replaced."""
        skill = replace(self.skill, **skill_changes)
        return replace(self, skill=skill, history=(*self.history, event))

    def to_dict(self) -> dict[str, Any]:
        """Primitives only, as checkpoints and `pool.jsonl` hold them."""
        data = asdict(self)
        data["capability"] = self.capability.value
        data["skill"]["state"] = self.skill.state.value
        data["history"] = [asdict(event) for event in self.history]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str) -> RubricSkillPair:
        """The pair that `to_dict` described.

        Args:
            data: What `to_dict` gave; `created_at` and `history` may be missing.
            where: File, line and config key, for the message.

        Raises:
            ConfigError: A field is missing, empty or of the wrong type, or the capability or the
                skill's state is not known.
        """
        rubric, skill = _mapping(data, "rubric", where), _mapping(data, "skill", where)
        history = data.get("history", ())
        return cls(
            id=_integer(data, "id", where, minimum=1),
            title=_text(data, "title", where),
            capability=Capability(_choice(data, "capability", Capability, where)),
            rubric=Rubric(
                applicability=_text(rubric, "applicability", where),
                fail_condition=_text(rubric, "fail_condition", where),
                pass_condition=_text(rubric, "pass_condition", where),
            ),
            skill=Skill(
                text=_text(skill, "text", where),
                state=SkillState(_choice(skill, "state", SkillState, where, default="hidden")),
                revision=_integer(skill, "revision", where, default=0),
            ),
            created_at=_integer(data, "created_at", where, default=0),
            history=tuple(_event(entry, where) for entry in history),
        )


def _event(data: Mapping[str, Any], where: str) -> PairEvent:
    return PairEvent(
        step=_integer(data, "step", where),
        type=_text(data, "type", where),
        num_passes=_integer(data, "num_passes", where, default=0),
        num_applicable=_integer(data, "num_applicable", where, default=0),
    )


def _mapping(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: field '{key}' must be an object, but is {value!r}")
    return value


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: field '{key}' must be a text that is not empty, got {value!r}")
    return value


def _integer(
    data: Mapping[str, Any], key: str, where: str, *, minimum: int = 0, default: int | None = None
) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(f"{where}: field '{key}' must be an integer >= {minimum}, got {value!r}")
    return value


def _choice(
    data: Mapping[str, Any],
    key: str,
    choices: type[StrEnum],
    where: str,
    *,
    default: str | None = None,
) -> str:
    value = data.get(key, default)
    allowed = [choice.value for choice in choices]
    if value not in allowed:
        raise ConfigError(
            f"{where}: field '{key}' is {value!r}, which is not known; allowed: "
            f"{', '.join(allowed)}"
        )
    return str(value)
