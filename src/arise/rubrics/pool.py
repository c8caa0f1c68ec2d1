"""The rubric-skill pool P_k with its pass-rate windows (Eq. 2 to 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arise.errors import ConfigError
from arise.rubrics.events import Event, EventType, apply_event, last_id, new_event, replay
from arise.rubrics.lifecycle import Action, decide, pass_rate
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.proposals import PairProposal, fold, reject_reason
from arise.types import InjectedSkill, Outcome, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """What asking for a new skill text gave.

    Attributes:
        text: The new text; `None` if there is none, and `error` says why.
        num_records: Failure records that were shown.
        error: Empty if all is well.
        origin: Hash of the prompt and name of the model.
    """

    text: str | None
    num_records: int
    error: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)


class RubricPool:
    """The pairs, the counter of ids, and the window's counts per pair.

    A pair is in the pool from the update that accepts it to the update that retires it. All its
    rubrics are judged; only the skills in state active are injected.

    Args:
        max_pairs: Most pairs in the pool; config key `rubrics.max_pairs`.
        max_new_pairs: Most pairs that one update adds; config key `rubrics.max_new_pairs`.
        max_text_chars: Longest field of a new pair and longest refined skill, in characters;
            config key `rubrics.max_text_chars`.

    Raises:
        ConfigError: A limit is below 1 (`max_new_pairs`: below 0).

    Example:
        >>> pool = RubricPool(max_pairs=64, max_new_pairs=8, max_text_chars=4000)
        >>> (len(pool), pool.active_skills(), pool.num_free_slots())
        (0, (), 8)
    """

    def __init__(self, *, max_pairs: int, max_new_pairs: int, max_text_chars: int) -> None:
        limits = {
            "max_pairs": max_pairs,
            "max_new_pairs": max_new_pairs,
            "max_text_chars": max_text_chars,
        }
        for name, value in limits.items():
            minimum = 0 if name == "max_new_pairs" else 1
            if not isinstance(value, int) or value < minimum:
                raise ConfigError(f"rubrics.{name} must be an integer >= {minimum}, got {value!r}")
        self._max_pairs = max_pairs
        self._max_new_pairs = max_new_pairs
        self._max_text_chars = max_text_chars
        self._pairs: dict[int, RubricSkillPair] = {}
        self._next_id = 1
        self._windows: dict[int, list[int]] = {}
        self._window_tasks: set[str] = set()

    @property
    def pairs(self) -> tuple[RubricSkillPair, ...]:
        """All pairs, in id order."""
        return tuple(self._pairs[pair_id] for pair_id in sorted(self._pairs))

    @property
    def next_id(self) -> int:
        """The id that the next new pair will get."""
        return self._next_id

    @property
    def window_task_ids(self) -> tuple[str, ...]:
        """Tasks trained since the last scheduled update, sorted."""
        return tuple(sorted(self._window_tasks))

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, pair_id: object) -> bool:
        return pair_id in self._pairs

    def __getitem__(self, pair_id: int) -> RubricSkillPair:
        return self._pairs[pair_id]

    def active_skills(self) -> tuple[InjectedSkill, ...]:
        """What the system prompt of the next rollouts shows, in id order."""
        return tuple(pair.injected for pair in self.pairs if pair.is_active)

    def observe(self, task_id: str, verdicts: Iterable[Verdict]) -> None:
        """Count one trained trajectory into the window.

        Verdicts `not_applicable` and those of pairs that have left the pool count nothing; a
        missing verdict is invalid and counts nothing either.

        Args:
            task_id: Task of the trajectory; remembered even if there is no verdict.
            verdicts: The valid verdicts.
        """
        self._window_tasks.add(task_id)
        for verdict in verdicts:
            if verdict.pair_id in self._pairs and verdict.outcome is not Outcome.NOT_APPLICABLE:
                counts = self._windows.setdefault(verdict.pair_id, [0, 0])
                counts[0] += verdict.outcome is Outcome.PASS
                counts[1] += 1

    def counts(self, pair_id: int) -> tuple[int, int]:
        """Passes and valid applicable verdicts N_i of the window."""
        num_passes, num_applicable = self._windows.get(pair_id, (0, 0))
        return num_passes, num_applicable

    def pass_rate(self, pair_id: int) -> float | None:
        """p̂_i of the window so far (Eq. 2); `None` where N_i = 0."""
        return pass_rate(*self.counts(pair_id))

    def mean_rubric_reward(self) -> float | None:
        """Passes over valid applicable verdicts of the window, all rubrics pooled."""
        counts = list(self._windows.values())
        return pass_rate(sum(count[0] for count in counts), sum(count[1] for count in counts))

    def decide(self, *, eta_low: float, eta_high: float, frozen: bool = False) -> dict[int, Action]:
        """The action for every pair, in id order, on the state as it is; changes nothing."""
        return {
            pair.id: decide(
                pair.skill.state,
                num_passes=self.counts(pair.id)[0],
                num_applicable=self.counts(pair.id)[1],
                eta_low=eta_low,
                eta_high=eta_high,
                frozen=frozen,
            )
            for pair in self.pairs
        }

    def num_free_slots(self, num_retired: int = 0) -> int:
        """How many pairs an update may add once `num_retired` have left."""
        return max(0, min(self._max_new_pairs, self._max_pairs - len(self) + num_retired))

    def import_pairs(self, pairs: Sequence[RubricSkillPair]) -> list[Event]:
        """Take over pairs of another run under their own ids.

        `max_pairs` does not bind, and a title may occur twice: a whole lifecycle may hold a
        requirement that retired and came back.

        Raises:
            ConfigError: An id occurs twice.
        """
        events = [
            new_event(EventType.IMPORTED, 0, pair_id=pair.id, pair=_texts_of(pair))
            for pair in sorted(pairs, key=lambda pair: pair.id)
        ]
        self._apply(events)
        return events

    def update(
        self,
        step: int,
        actions: Mapping[int, Action],
        *,
        refinements: Mapping[int, Refinement],
        proposals: Sequence[PairProposal],
        origin: Mapping[str, str] | None = None,
    ) -> list[Event]:
        """One scheduled update: transitions, retirement (Eq. 6), acceptance, new windows.

        Args:
            step: k+1.
            actions: From `decide`.
            refinements: Result per pair whose action is `REFINE`; a missing one keeps the text.
            proposals: New pairs, in the order in which the model returned them.
            origin: Hash of the prompt and name of the model that proposed them.

        Returns:
            The events, already applied: one per pair in id order, then one per proposal.
        """
        taken_titles = {fold(pair.title) for pair in self.pairs}
        events = [
            self._transition(step, pair, actions[pair.id], refinements.get(pair.id))
            for pair in self.pairs
        ]
        self._apply(events)
        events += self._accept(step, proposals, taken_titles, origin or {})
        self._windows.clear()
        self._window_tasks.clear()
        return events

    def _transition(
        self, step: int, pair: RubricSkillPair, action: Action, refinement: Refinement | None
    ) -> Event:
        num_passes, num_applicable = self.counts(pair.id)
        fields: dict[str, Any] = {
            "pair_id": pair.id,
            "num_passes": num_passes,
            "num_applicable": num_applicable,
            "pass_rate": pass_rate(num_passes, num_applicable),
        }
        if action is Action.ACTIVATE:
            return new_event(EventType.ACTIVATED, step, **fields)
        if action is Action.HIDE:
            return new_event(EventType.HIDDEN, step, **fields)
        if action is Action.RETIRE:
            return new_event(
                EventType.RETIRED,
                step,
                **fields,
                pair=_texts_of(pair),
                task_ids=list(self.window_task_ids),
            )
        reason = "between_bounds" if num_applicable else "no_applicable_verdict"
        if action is Action.REFINE:
            if refinement is not None and refinement.text is not None:
                if len(refinement.text) <= self._max_text_chars:
                    return new_event(
                        EventType.REFINED,
                        step,
                        **fields,
                        revision=pair.skill.revision + 1,
                        text=refinement.text,
                        old_text=pair.skill.text,
                        num_records=refinement.num_records,
                        **refinement.origin,
                    )
                reason = "refinement_too_long"
            else:
                reason = refinement.error if refinement else "not_refined"
        return new_event(
            EventType.KEPT, step, **fields, state=pair.skill.state.value, reason=reason
        )

    def _accept(
        self,
        step: int,
        proposals: Sequence[PairProposal],
        taken_titles: set[str],
        origin: Mapping[str, str],
    ) -> list[Event]:
        room = self.num_free_slots()
        events = []
        for proposal in proposals:
            reason = reject_reason(
                proposal, taken_titles=taken_titles, max_text_chars=self._max_text_chars
            )
            if reason is None and room == 0:
                reason = "no_room"
            if reason is not None:
                events.append(
                    new_event(
                        EventType.REJECTED,
                        step,
                        reason=reason,
                        proposal=proposal.texts,
                        evidence=proposal.evidence,
                        **origin,
                    )
                )
                continue
            pair = proposal.to_pair(pair_id=self._next_id, step=step)
            event = new_event(
                EventType.CREATED,
                step,
                pair_id=pair.id,
                pair=_texts_of(pair),
                evidence=proposal.evidence,
                **origin,
            )
            self._apply([event])
            taken_titles.add(fold(pair.title))
            room -= 1
            events.append(event)
        return events

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            apply_event(self._pairs, event)
        self._next_id = max(self._next_id, last_id(events) + 1)

    def restore(self, events: Sequence[Event], until_step: int | None = None) -> None:
        """Become the pool as it was right after step `until_step`, from a run's events.

        Windows are empty then; ids go on after the highest that was ever given out.

        Raises:
            ConfigError: The events contradict each other.
        """
        self._pairs = replay(events, until_step)
        self._next_id = last_id(events, until_step) + 1
        self._windows.clear()
        self._window_tasks.clear()

    def restart_window(self) -> None:
        """Count afresh, as after an update: what a pool without a life cycle does on schedule."""
        self._windows.clear()
        self._window_tasks.clear()

    def state_dict(self) -> dict[str, Any]:
        """Primitives only: pairs, next id, and the window's counts and tasks."""
        return {
            "next_id": self._next_id,
            "pairs": [pair.to_dict() for pair in self.pairs],
            "windows": {
                pair_id: tuple(self._windows[pair_id]) for pair_id in sorted(self._windows)
            },
            "window_task_ids": self.window_task_ids,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the pool that `state_dict` described."""
        pairs = [RubricSkillPair.from_dict(data, where="checkpoint") for data in state["pairs"]]
        self._pairs = {pair.id: pair for pair in pairs}
        self._next_id = int(state["next_id"])
        self._windows = {int(key): list(value) for key, value in state["windows"].items()}
        self._window_tasks = set(state["window_task_ids"])


def _texts_of(pair: RubricSkillPair) -> dict[str, Any]:
    """The pair for an event: its history is the other events."""
    return {**pair.to_dict(), "history": []}
