"""The scheduled life-cycle update (Algorithm 1, L19 to L27)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arise.errors import ConfigError, ReflectionError, one_line
from arise.llm.chat import Purpose
from arise.rubrics.diagnostics import EvidenceBuffer
from arise.rubrics.events import Event, EventType, new_event
from arise.rubrics.lifecycle import Action
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.payloads import (
    FailureRecord,
    GenerationPayload,
    GenerationRecord,
    PairStatus,
    RefinementPayload,
    WindowMetadata,
)
from arise.rubrics.pool import Refinement, RubricPool
from arise.rubrics.prompting import rubric_views
from arise.rubrics.proposals import PairProposal
from arise.rubrics.reflection import Reflection

if TYPE_CHECKING:
    from arise.rubrics.diagnostics import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionReport:
    """What one update did.

    Attributes:
        step: k+1.
        events: For `pool.jsonl`, in order: one per pair, the generation call, one per proposal.
        num_pairs: Size of the pool afterwards.
        num_active_skills: Injected skills afterwards.
        usage: What asking the reflection model cost, `reflection/*` by TensorBoard name.
    """

    step: int
    events: tuple[Event, ...]
    num_pairs: int
    num_active_skills: int
    usage: Mapping[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of events by type; rejections also as `rejected/<reason>`."""
        counts = Counter(event["type"] for event in self.events)
        counts.update(
            f"rejected/{event['reason']}"
            for event in self.events
            if event["type"] == EventType.REJECTED
        )
        return counts

    @property
    def metrics(self) -> dict[str, float]:
        """Scalars by TensorBoard name."""
        names = ("created", "activated", "hidden", "refined", "retired", "kept", "rejected")
        counts = self.counts
        failed = sum(bool(event.get("error")) for event in self.events)
        return {
            "pool/size": float(self.num_pairs),
            "pool/active_skills": float(self.num_active_skills),
            "pool/failed_generations": float(failed),
            **{f"pool/{name}": float(counts.get(name, 0)) for name in names},
            **self.usage,
        }


class Evolution:
    """Runs the life-cycle update every Δ_pool steps.

    Args:
        eta_low: η_low in [0, η_high); key `rubrics.eta_low`.
        eta_high: η_high in (0, 1]; key `rubrics.eta_high`.
        update_interval: Δ_pool in steps; key `rubrics.update_interval`.

    Raises:
        ConfigError: A threshold or the interval is out of range.
    """

    def __init__(self, *, eta_low: float, eta_high: float, update_interval: int) -> None:
        if not 0.0 < eta_high <= 1.0:
            raise ConfigError(f"rubrics.eta_high must be in (0, 1], got {eta_high!r}")
        if not 0.0 <= eta_low < eta_high:
            raise ConfigError(
                f"rubrics.eta_low must be in [0, rubrics.eta_high) = [0, {eta_high!r}), "
                f"got {eta_low!r}"
            )
        if not isinstance(update_interval, int) or update_interval < 1:
            raise ConfigError(
                f"rubrics.update_interval must be an integer >= 1, got {update_interval!r}"
            )
        self._eta_low = eta_low
        self._eta_high = eta_high
        self._update_interval = update_interval

    def is_due(self, step: int) -> bool:
        """Whether an update follows step k+1: Δ_pool | (k+1)."""
        return step > 0 and step % self._update_interval == 0

    async def update(
        self,
        step: int,
        pool: RubricPool,
        buffer: EvidenceBuffer,
        reflection: Reflection,
        rng: Generator,
        *,
        inject_skills: bool = True,
        frozen: bool = False,
    ) -> EvolutionReport:
        """Decide on the state before the update, ask the reflection, then change the pool.

        All model calls come before the first change, so an interrupted update changes nothing
        (but may have drawn from `rng`). A failed generation adds nothing and a failed refinement
        keeps the text; the other transitions happen all the same.

        Args:
            step: k+1, written on every event.
            pool: The pool; changed, its windows restart.
            buffer: B_k; restarts.
            reflection: G_ref.
            rng: The curriculum's own generator, for drawing records.
            inject_skills: Whether skills are shown at all; if not, none is refined.
            frozen: Whether membership is fixed: nothing is added or retired.
        """
        actions = pool.decide(eta_low=self._eta_low, eta_high=self._eta_high, frozen=frozen)
        num_retired = sum(action is Action.RETIRE for action in actions.values())
        num_slots = 0 if frozen else pool.num_free_slots(num_retired)
        failures = self._failures(pool, buffer, actions if inject_skills else {})
        records = buffer.draw(rng) if num_slots or any(failures.values()) else ()
        metadata = _metadata(step, pool, buffer)
        (event, proposals), texts = await asyncio.gather(
            _generate(reflection, pool, records, num_slots, metadata),
            asyncio.gather(
                *(
                    _refine(reflection, pool[pair_id], evidence, records, metadata)
                    for pair_id, evidence in failures.items()
                )
            ),
        )
        events = pool.update(
            step,
            actions,
            refinements=dict(zip(failures, texts, strict=True)),
            proposals=proposals,
            origin=reflection.origin(Purpose.GENERATION),
        )
        buffer.restart()
        if event is not None:
            events.insert(len(actions), event)
        return EvolutionReport(
            step=step,
            events=tuple(events),
            num_pairs=len(pool),
            num_active_skills=len(pool.active_skills()),
            usage=reflection.pop_metrics(),
        )

    def _failures(
        self, pool: RubricPool, buffer: EvidenceBuffer, actions: Mapping[int, Action]
    ) -> dict[int, tuple[FailureRecord, ...]]:
        """Failure evidence of every pair that is to be refined, in id order."""
        return {
            pair_id: buffer.failures(pair_id, pool[pair_id].skill.revision)
            for pair_id, action in actions.items()
            if action is Action.REFINE
        }


async def _generate(
    reflection: Reflection,
    pool: RubricPool,
    records: tuple[GenerationRecord, ...],
    num_slots: int,
    metadata: WindowMetadata,
) -> tuple[Event | None, tuple[PairProposal, ...]]:
    """The one generation call of an update; none if there is no room or no record."""
    if not num_slots or not records:
        return None, ()
    payload = GenerationPayload(
        records=records,
        pool=rubric_views(pool.pairs),
        max_pairs=num_slots,
        metadata=metadata,
    )
    proposals: tuple[PairProposal, ...] = ()
    error = ""
    try:
        proposals = await reflection.generate(payload)
    except ReflectionError as failure:
        error = one_line(failure)
    event = new_event(
        EventType.GENERATION,
        metadata.step,
        num_records=len(records),
        num_proposals=len(proposals),
        **reflection.origin(Purpose.GENERATION),
        error=error,
    )
    return event, proposals


async def _refine(
    reflection: Reflection,
    pair: RubricSkillPair,
    failures: tuple[FailureRecord, ...],
    context: tuple[GenerationRecord, ...],
    metadata: WindowMetadata,
) -> Refinement:
    """The new text of one skill; no call without evidence."""
    if not failures:
        return Refinement(text=None, num_records=0, error="no_failure_with_this_revision")
    payload = RefinementPayload(
        rubric=rubric_views([pair])[0],
        skill=pair.skill.text,
        revision=pair.skill.revision,
        failures=failures,
        context=context,
        metadata=metadata,
    )
    try:
        text = await reflection.refine(payload)
    except ReflectionError as failure:
        return Refinement(text=None, num_records=len(failures), error=one_line(failure))
    origin = reflection.origin(Purpose.REFINEMENT)
    return Refinement(text=text, num_records=len(failures), origin=origin)


def _metadata(step: int, pool: RubricPool, buffer: EvidenceBuffer) -> WindowMetadata:
    return WindowMetadata(
        step=step,
        num_trajectories=len(buffer),
        num_tasks=buffer.num_tasks(),
        task_types=buffer.num_trajectories_by_tag(),
        pairs=tuple(
            PairStatus(
                pair_id=pair.id,
                state=pair.skill.state.value,
                revision=pair.skill.revision,
                num_passes=pool.counts(pair.id)[0],
                num_applicable=pool.counts(pair.id)[1],
            )
            for pair in pool.pairs
        ),
    )
