"""OnlineRubrics: criteria elicited per task and step, graded, averaged into a reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from arise.errors import ConfigError, ReflectionError
from arise.rubrics.criteria_payloads import ExtractionPayload, MergePayload, ReferencePayload
from arise.rubrics.elicitation import Elicitation, numbered
from arise.rubrics.judge import Judge
from arise.rubrics.pair import Rubric, RubricSkillPair, Skill
from arise.rubrics.payloads import TraceStep, TrajectoryView
from arise.rubrics.trace import shorten, trajectory_view
from arise.types import (
    Capability,
    Criterion,
    FinishReason,
    Iteration,
    Review,
    Trajectory,
    TrajectoryGroup,
)

REFERENCES = ("initial_policy", "reflection")
OUTCOME = "The task is solved, as its tests decide."


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineOptions:
    """How criteria are elicited; the keys of the same names below `rubrics.online`.

    Attributes:
        reference: Who plays the other side: `"initial_policy"` or `"reflection"`.
        pairs_per_task: Comparisons of one task in one iteration.
        max_criteria: Most criteria of one task.
        trace_budget_tokens: Longest trace in a prompt; the judge's.

    Raises:
        ConfigError: A value is out of range.
    """

    reference: str
    pairs_per_task: int
    max_criteria: int
    trace_budget_tokens: int

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise ConfigError(
                f"rubrics.online.reference = {self.reference!r} is not one of "
                f"{', '.join(REFERENCES)}"
            )
        for name in ("pairs_per_task", "max_criteria"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"rubrics.online.{name} = {getattr(self, name)} must be 1 or more"
                )


class OnlineRubrics:
    """Fills an iteration's criteria and reviews; nothing lives on afterwards.

    Args:
        elicitation: Asks for criteria, and for reference answers if the options say so.
        judge: Grades.
        options: How.
    """

    def __init__(self, *, elicitation: Elicitation, judge: Judge, options: OnlineOptions) -> None:
        self.options = options
        self._elicitation = elicitation
        self._judge = judge
        self._num_failed = 0

    async def review(
        self, iteration: Iteration, references: Sequence[TrajectoryGroup] | None
    ) -> None:
        """Elicit and grade for every group at once.

        Args:
            iteration: With groups; gets `criteria`, `reviews` and metrics.
            references: Rollouts of the initial policy, aligned with the groups; `None` lets the
                reflection model answer the tasks.
        """
        results = await asyncio.gather(
            *(
                self._review_group(group, references[index] if references else None)
                for index, group in enumerate(iteration.groups)
            )
        )
        iteration.criteria = [criteria for criteria, _ in results]
        iteration.reviews = [reviews for _, reviews in results]
        iteration.metrics |= self._judge.pop_metrics() | self._elicitation.pop_metrics()
        iteration.metrics |= {
            "criteria/per_task": sum(map(len, iteration.criteria)) / len(results),
            "criteria/failed_requests": float(self._num_failed),
        }
        self._num_failed = 0
        self._judge.require_judge()

    async def _review_group(
        self, group: TrajectoryGroup, reference: TrajectoryGroup | None
    ) -> tuple[tuple[Criterion, ...], list[Review | None]]:
        criteria = await self._elicit(group, reference)
        pairs = [as_pair(criterion) for criterion in criteria]
        if not pairs:
            empty = [Review() if isinstance(slot, Trajectory) else None for slot in group.slots]
            return (), empty

        async def grade(slot: object) -> Review | None:
            if not isinstance(slot, Trajectory):
                return None
            return await self._judge.review(group.task, slot, pairs, asks_diagnostics=False)

        return criteria, list(await asyncio.gather(*map(grade, group.slots)))

    async def _elicit(
        self, group: TrajectoryGroup, reference: TrajectoryGroup | None
    ) -> tuple[Criterion, ...]:
        """Criteria of one task; a request that fails costs its own criteria only."""
        current = [trajectory_view(group.task, trajectory) for trajectory in group.trajectories]
        others = await self._references(group, reference)
        if not current or not others:
            return ()
        budget = self.options.trace_budget_tokens
        found = await asyncio.gather(
            *(
                self._extract(
                    shorten(current[number % len(current)], budget),
                    shorten(others[number % len(others)], budget),
                )
                for number in range(self.options.pairs_per_task)
            )
        )
        extracted = tuple(criterion for criteria in found for criterion in criteria)
        if not extracted:
            return ()
        payload = MergePayload(
            instruction=current[0].instruction,
            criteria=extracted,
            max_criteria=self.options.max_criteria,
        )
        try:
            return await self._elicitation.merge(payload)
        except ReflectionError:
            self._num_failed += 1
            return numbered(extracted, self.options.max_criteria)

    async def _extract(
        self, current: TrajectoryView, reference: TrajectoryView
    ) -> tuple[Criterion, ...]:
        payload = ExtractionPayload(current=current, reference=reference, covered=(OUTCOME,))
        try:
            return await self._elicitation.extract(payload)
        except ReflectionError:
            self._num_failed += 1
            return ()

    async def _references(
        self, group: TrajectoryGroup, reference: TrajectoryGroup | None
    ) -> list[TrajectoryView]:
        if reference is not None:
            return [trajectory_view(group.task, t) for t in reference.trajectories]
        instruction = group.task.instruction
        try:
            text = await self._elicitation.answer(ReferencePayload(instruction=instruction))
        except ReflectionError:
            self._num_failed += 1
            return []
        view = TrajectoryView(
            task_id=group.task.id,
            instruction=instruction,
            steps=(TraceStep(text=text),),
            finish_reason=FinishReason.SUBMITTED.value,
            is_success=False,
        )
        return [view]


def as_pair(criterion: Criterion) -> RubricSkillPair:
    """The criterion as the judge takes it: `pass` means met.

    It has no skill and no capability of its own; both are filled, and shown to nobody.
    """
    return RubricSkillPair(
        id=criterion.id,
        title=f"Criterion {criterion.id}",
        capability=Capability.EXECUTION,
        rubric=Rubric(
            applicability="The situation that the criterion speaks of occurs in the trace.",
            fail_condition="It occurs, and what the criterion states is not so.",
            pass_condition=criterion.text,
        ),
        skill=Skill(text=criterion.text),
        created_at=0,
    )
