"""RuscaRL's scaffold (arXiv 2508.16949): criteria in the prompt, fewer by rollout and step."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from arise.errors import ConfigError
from arise.rubrics.pair import RubricSkillPair
from arise.types import InjectedSkill

SHOWN = ("skill", "criterion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """Which criteria each rollout is shown.

    Rollout i of G at step t of T sees round(n · r_i · f_t) of the n criteria, with

        r_i = (G − 1 − i) / (G − 1),   f_t = 1 / (1 + exp(steepness · (x − midpoint))),
        x = (t − 1) / (T − 1).

    So the first rollout of a group sees most and the last none. Which ones is drawn by a generator
    seeded with (run seed, iteration, task, rollout): a redone iteration shows the same.

    Attributes:
        seed: The run's seed.
        total_steps: T; key `rubrics.scaffold.total_steps`.
        steepness: Of the decay; key `rubrics.scaffold.steepness`.
        midpoint: Share of the training at which half is shown; key `rubrics.scaffold.midpoint`.
        show: `"skill"`: the guidance of a pair; `"criterion"`: its pass condition. Key
            `rubrics.scaffold.show`.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> scaffold = Scaffold(
        ...     seed=1, total_steps=150, steepness=125.0, midpoint=0.2, show="skill"
        ... )
        >>> [round(scaffold.decay(step), 2) for step in (25, 31, 35)]
        [0.99, 0.46, 0.03]
    """

    seed: int
    total_steps: int
    steepness: float
    midpoint: float
    show: str

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise ConfigError(
                f"rubrics.scaffold.total_steps = {self.total_steps} must be 1 or more"
            )
        if not self.steepness > 0:
            raise ConfigError(f"rubrics.scaffold.steepness = {self.steepness} must be above 0")
        if not 0 <= self.midpoint <= 1:
            raise ConfigError(f"rubrics.scaffold.midpoint = {self.midpoint} is not in [0, 1]")
        if self.show not in SHOWN:
            raise ConfigError(
                f"rubrics.scaffold.show = {self.show!r} is not one of {', '.join(SHOWN)}"
            )

    def decay(self, step: int) -> float:
        """f_t of step t, from 1; in (0, 1)."""
        x = (step - 1) / (self.total_steps - 1) if self.total_steps > 1 else 0.0
        # Far beyond the midpoint exp() would overflow; the factor is 0 in float64 there.
        exponent = min(self.steepness * (x - self.midpoint), 700.0)
        return 1.0 / (1.0 + math.exp(exponent))

    def num_shown(self, num_criteria: int, *, step: int, rollout: int, group_size: int) -> int:
        """How many of `num_criteria` rollout i of G is shown at step t."""
        share = (group_size - 1 - rollout) / (group_size - 1)
        return round(num_criteria * share * self.decay(step))

    def shown(
        self,
        pairs: Sequence[RubricSkillPair],
        *,
        step: int,
        task_id: str,
        rollout: int,
        group_size: int,
    ) -> tuple[InjectedSkill, ...]:
        """What one rollout's system prompt holds, in pair-id order.

        Args:
            pairs: The criteria.
            step: t, from 1.
            task_id: Task of the group.
            rollout: i, from 0.
            group_size: G, at least 2.
        """
        count = self.num_shown(len(pairs), step=step, rollout=rollout, group_size=group_size)
        parts = repr((self.seed, "scaffold", step, task_id, rollout)).encode()
        rng = random.Random(hashlib.blake2b(parts, digest_size=8).digest())
        chosen = rng.sample(sorted(pairs, key=lambda pair: pair.id), count)
        return tuple(map(self._text, sorted(chosen, key=lambda pair: pair.id)))

    def _text(self, pair: RubricSkillPair) -> InjectedSkill:
        text = pair.skill.text if self.show == "skill" else pair.rubric.pass_condition
        return InjectedSkill(pair_id=pair.id, revision=pair.skill.revision, text=text)
