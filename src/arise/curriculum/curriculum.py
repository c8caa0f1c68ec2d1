"""The curriculum: sampler, pool, evidence and their generators, with one state."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arise.curriculum.base import GroupObservation, Sampler
from arise.errors import ConfigError
from arise.rubrics.diagnostics import EvidenceBuffer
from arise.rubrics.events import Event
from arise.rubrics.evolution import Evolution, EvolutionReport
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.pool import RubricPool
from arise.rubrics.reflection import Reflection
from arise.types import (
    InjectedSkill,
    Iteration,
    Review,
    SampledTask,
    Trajectory,
    TrajectoryGroup,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricParts:
    """What a curriculum with rubrics owns besides its sampler.

    Attributes:
        pool: P_k.
        buffer: B_k.
        evolution: The life-cycle update and its schedule.
        reflection: G_ref; `None` for a pool without a life cycle.
        inject_skills: Whether active skills reach the system prompt.
        is_frozen: Whether the pool's membership is fixed.
        is_static: Whether the pool has no life cycle at all; only its windows restart on schedule.
        imported: Events of the pairs that are in the pool from the start.
    """

    pool: RubricPool
    buffer: EvidenceBuffer
    evolution: Evolution
    reflection: Reflection | None
    inject_skills: bool = True
    is_frozen: bool = False
    is_static: bool = False
    imported: tuple[Event, ...] = ()


class Curriculum:
    """Draws iterations, learns from them and evolves the pool.

    An iteration that was drawn but not observed has not happened: until `observe` the state is the
    one before the draw, so that an interrupted run draws the same tasks again.

    Example:
        >>> iteration = curriculum.draw(0)
        >>> ...  # rollouts, verdicts, one optimizer step
        >>> curriculum.observe(iteration)
        >>> await curriculum.evolve(1)
    """

    def __init__(
        self,
        *,
        sampler: Sampler,
        tasks_per_step: int,
        seed: int,
        rubrics: RubricParts | None = None,
    ) -> None:
        """Own the parts.

        Args:
            sampler: Chooses tasks; knows no rubrics yet.
            tasks_per_step: B; config key `rollout.tasks_per_step`.
            seed: Seed of the generator that draws records for the reflection.
            rubrics: Pool and life cycle; `None` trains on the outcome alone.

        Raises:
            ConfigError: If `tasks_per_step` is below 1.
        """
        if tasks_per_step < 1:
            raise ConfigError(f"rollout.tasks_per_step must be at least 1, got {tasks_per_step}")
        self._sampler = sampler
        self._tasks_per_step = tasks_per_step
        self._rubrics = rubrics
        self._rng = random.Random(seed)
        self._before_draw: dict[str, Any] | None = None
        self._known_pairs: set[int] = set()
        self._events: list[Event] = list(rubrics.imported) if rubrics else []
        self._tell_sampler()

    @property
    def pairs(self) -> tuple[RubricSkillPair, ...]:
        """The pool in id order: what a group is judged against; empty without rubrics."""
        return self._rubrics.pool.pairs if self._rubrics else ()

    @property
    def live_pair_ids(self) -> frozenset[int]:
        """Ids of the pairs in the pool: verdicts of others count nowhere any more."""
        return frozenset(pair.id for pair in self.pairs)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Ids of the tasks that are set aside for the run, sorted."""
        return self._sampler.quarantined

    def draw(self, index: int, exclude: Collection[str] = ()) -> Iteration:
        """Draw iteration k; one that was drawn before and not observed is undone first.

        Args:
            index: k.
            exclude: Ids of tasks in flight.

        Returns:
            The iteration with tasks and skills; fewer than B tasks if fewer are available.
        """
        if self._before_draw is not None:
            self._restore(self._before_draw)
        self._before_draw = self._state()
        return Iteration(
            index=index,
            samples=self._sampler.draw(self._tasks_per_step, exclude),
            skills=self.injected_skills,
        )

    @property
    def injected_skills(self) -> tuple[InjectedSkill, ...]:
        """What the system prompt of a group that is admitted now shows, in pair-id order."""
        injects = self._rubrics is not None and self._rubrics.inject_skills
        return self._rubrics.pool.active_skills() if self._rubrics and injects else ()

    def admit(self, num_tasks: int, exclude: Collection[str]) -> list[SampledTask]:
        """Draw tasks for asynchronous rollouts; unlike `draw`, this counts at once.

        Whoever saves the curriculum saves what is in flight with it.

        Args:
            num_tasks: Tasks to draw, at most B as one batch.
            exclude: Ids of tasks in flight.

        Returns:
            Distinct tasks; fewer than asked for if fewer are available.
        """
        return self._sampler.draw(min(num_tasks, self._tasks_per_step), exclude)

    def observe(self, iteration: Iteration) -> None:
        """Learn from an iteration whose optimizer step is done.

        Window counts and evidence buffer take all survivors; the sampler decides what an
        incomplete group tells it. Groups count in task-id order, at version k+1.

        Args:
            iteration: With groups, and with reviews if a judge ran; gets `rubric/*` metrics.
        """
        reviews = iteration.reviews or [[None] * len(g.slots) for g in iteration.groups]
        ordered = sorted(
            zip(iteration.groups, reviews, strict=True), key=lambda entry: entry[0].task.id
        )
        if self._rubrics is not None:
            for group, group_reviews in ordered:
                self._record(iteration.index, group, group_reviews)
            iteration.metrics |= window_metrics(self._rubrics.pool)
        self._sampler.observe(
            iteration.index + 1, [observation(group, own) for group, own in ordered]
        )
        self._before_draw = None

    async def evolve(self, step: int) -> EvolutionReport | None:
        """Run the life-cycle update if one is due after step k+1; call after `observe`.

        The sampler forgets retired rubrics and learns of new ones.

        Returns:
            What the update did; `None` if none was due, or the pool has no life cycle.
        """
        rubrics = self._rubrics
        if rubrics is None or not rubrics.evolution.is_due(step):
            return None
        if rubrics.is_static or rubrics.reflection is None:
            rubrics.pool.restart_window()
            rubrics.buffer.restart()
            return None
        state = self._rng.getstate()
        try:
            report = await rubrics.evolution.update(
                step,
                rubrics.pool,
                rubrics.buffer,
                rubrics.reflection,
                self._rng,
                inject_skills=rubrics.inject_skills,
                frozen=rubrics.is_frozen,
            )
        except BaseException:
            # An interrupted update changes nothing, the generator included.
            self._rng.setstate(state)
            raise
        self._events += report.events
        self._tell_sampler()
        return report

    def pop_events(self) -> list[Event]:
        """The pool's events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def metrics(self) -> dict[str, float]:
        """`sampler/*` and `pool/*` scalars as they stand now."""
        metrics = self._sampler.metrics()
        if self._rubrics is not None:
            metrics["pool/size"] = float(len(self._rubrics.pool))
            metrics["pool/active_skills"] = float(len(self._rubrics.pool.active_skills()))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The state before the draw of an unobserved iteration, else the state now.

        Primitives, tuples, lists, dicts and sets only.
        """
        return self._state() if self._before_draw is None else self._before_draw

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ConfigError: If it was saved with another sampler, or only one of the two has rubrics.
        """
        if (state["pool"] is None) != (self._rubrics is None):
            saved, now = ("without", "with") if self._rubrics else ("with", "without")
            raise ConfigError(
                f"the saved state is {saved} a rubric pool, this run is {now} one: resume with "
                "the value of rubrics.mode that it was saved with"
            )
        self._restore(state)
        # Whoever saved the state has written the events up to then.
        self._events = []

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state["sampler"])
        self._known_pairs = set(state["known_pairs"])
        self._rng.setstate(state["rng"])
        if self._rubrics is not None:
            self._rubrics.pool.load_state_dict(state["pool"])
            self._rubrics.buffer.load_state_dict(state["buffer"])
        self._before_draw = None

    def _state(self) -> dict[str, Any]:
        rubrics = self._rubrics
        return {
            "sampler": self._sampler.state_dict(),
            "known_pairs": tuple(sorted(self._known_pairs)),
            "rng": self._rng.getstate(),
            "pool": rubrics.pool.state_dict() if rubrics else None,
            "buffer": rubrics.buffer.state_dict() if rubrics else None,
        }

    def _tell_sampler(self) -> None:
        """Pass on which rubrics left the pool and which entered it."""
        for pair_id in sorted(self._known_pairs - self.live_pair_ids):
            self._sampler.forget(pair_id)
        for pair in self.pairs:
            if pair.id not in self._known_pairs:
                self._sampler.add_pair(pair.id, pair.capability)
        self._known_pairs = set(self.live_pair_ids)

    def _record(
        self,
        index: int,
        group: TrajectoryGroup,
        reviews: Sequence[Review | None],
    ) -> None:
        """Enter one group's survivors into the window and the evidence buffer."""
        assert self._rubrics is not None
        for slot, review in zip(group.slots, reviews, strict=True):
            if not isinstance(slot, Trajectory):
                continue
            self._rubrics.pool.observe(group.task.id, review.verdicts if review else ())
            if review is not None:
                self._rubrics.buffer.observe(index, group.task, slot, review)


def observation(group: TrajectoryGroup, reviews: Sequence[Review | None]) -> GroupObservation:
    """What a sampler learns from a group.

    Args:
        group: The group.
        reviews: Aligned with `group.slots`; `None` where nothing was reviewed.
    """
    survivors = [
        (slot, review)
        for slot, review in zip(group.slots, reviews, strict=True)
        if isinstance(slot, Trajectory)
    ]
    return GroupObservation(
        task_id=group.task.id,
        tags=group.task.tags,
        num_rollouts=len(group.slots),
        outcomes=tuple(review.outcomes if review else {} for _, review in survivors),
        rewards=tuple(trajectory.task_reward for trajectory, _ in survivors),
        is_complete=group.is_complete,
        was_sent_to_evaluation=any(review is not None for review in reviews),
    )


def window_metrics(pool: RubricPool) -> dict[str, float]:
    """Mean rubric reward of the window so far, overall and by capability; undefined ones left out.

    The mean is passes over valid applicable verdicts, all rubrics pooled.
    """
    num_passes: Counter[str] = Counter()
    num_applicable: Counter[str] = Counter()
    for pair in pool.pairs:
        passes, applicable = pool.counts(pair.id)
        for name in ("mean_reward", f"pass_rate_{pair.capability}"):
            num_passes[name] += passes
            num_applicable[name] += applicable
    return {
        f"rubric/{name}": num_passes[name] / count
        for name, count in num_applicable.items()
        if count
    }
