"""Iterations from a stream of groups: what is admitted when, and what is logged and saved of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from arise.agents.groups import (
    DROP_REASONS,
    OVER_BOUND,
    TASK_REMOVED,
    Admission,
)
from arise.agents.stream import RolloutStream
from arise.aio import EventLoopThread
from arise.algorithms.staleness import staleness_metrics
from arise.curriculum.curriculum import Curriculum
from arise.rubrics.variant import Variant
from arise.types import Capability, InjectedSkill, Iteration, SampledTask, Task

log = logging.getLogger(__name__)


class AsynchronousRollouts:
    """Fills iterations while groups are played all the time (`rollout.max_staleness` above 0).

    The trainer's thread alone draws tasks and changes what is in flight, so a saved state is that
    of one moment: between two steps.

    Args:
        loop: The run's event loop.
        stream: Plays groups.
        curriculum: Draws tasks.
        tasks: The training set, to find restored tasks in.
        tasks_per_step: B.
        rollouts_per_task: G.
        variant: What a baseline shows each rollout.
    """

    def __init__(
        self,
        *,
        loop: EventLoopThread,
        stream: RolloutStream,
        curriculum: Curriculum,
        tasks: Sequence[Task],
        tasks_per_step: int,
        rollouts_per_task: int,
        variant: Variant,
    ) -> None:
        self._loop = loop
        self._stream = stream
        self._curriculum = curriculum
        self._tasks = {task.id: task for task in tasks}
        self._tasks_per_step = tasks_per_step
        self._rollouts_per_task = rollouts_per_task
        self._variant = variant
        self._restored: list[dict[str, Any]] = []
        self._dropped: Counter[str] = Counter()

    @property
    def ready(self) -> tuple[int, int]:
        """Groups that wait to be trained, at most B of them, and B."""
        return min(self._stream.num_finished, self._tasks_per_step), self._tasks_per_step

    def collect(self, iteration: Iteration) -> None:
        """Admit what the bound allows, wait for B groups and put them into the iteration.

        Args:
            iteration: Gets samples, groups and reviews, `staleness/*` and the time waited.

        Raises:
            ConfigError: An episode showed that the configuration is impossible.
            AccountingError: A group was lost.
        """
        started = time.perf_counter()
        self._resubmit(iteration.index)
        self._admit(iteration.index)
        taken = self._loop.run(self._stream.take(self._tasks_per_step))
        iteration.durations_s["wait"] = time.perf_counter() - started
        iteration.samples = [finished.admission.sample for finished in taken]
        iteration.groups = [finished.group for finished in taken]
        if any(review is not None for finished in taken for review in finished.reviews):
            iteration.reviews = [list(finished.reviews) for finished in taken]
        iteration.metrics |= staleness_metrics(iteration.groups, iteration.index)

    def advance(self, version: int) -> dict[str, float]:
        """The iteration's optimizer step is done and the engine plays the new policy.

        Args:
            version: k + 1.

        Returns:
            `staleness/*`: where all groups went so far, and what was dropped since the last step.
        """
        self._loop.run(self._stream.advance(version))
        return self._account_metrics()

    def close(self) -> None:
        """End every episode that still runs."""
        self._loop.run(self._stream.close())

    def _admit(self, version: int) -> None:
        """Draw batches up to the bound, or until no task is left that is not in flight."""
        while self._stream.num_free > 0:
            samples = self._curriculum.admit(self._stream.num_free, self._stream.task_ids)
            if not samples:
                return
            first = self._stream.account.num_started
            self._begin(
                [
                    self._admission(serial, sample, version)
                    for serial, sample in enumerate(samples, start=first)
                ],
                version,
            )

    def _resubmit(self, version: int) -> None:
        """Play what was in flight when the state was saved, as far as the bound allows.

        Their episodes start afresh: every token is of `version` or later, so the bound holds.
        """
        kept: list[Admission] = []
        num_places = self._stream.num_free + len(self._restored)
        for saved in self._restored:
            task = self._tasks.get(saved["task_id"])
            if task is not None and len(kept) < num_places:
                kept.append(self._admission(saved["serial"], _sample(task, saved), version))
                continue
            reason = TASK_REMOVED if task is None else OVER_BOUND
            log.warning("task %s was in flight and is dropped: %s", saved["task_id"], reason)
            self._stream.account.drop(saved["serial"], reason)
        if kept:
            self._begin(kept, version)
        self._restored = []

    def _begin(self, admissions: list[Admission], version: int) -> None:
        self._loop.run(self._stream.admit(admissions, version=version))

    def _admission(self, serial: int, sample: SampledTask, version: int) -> Admission:
        return Admission(
            serial=serial,
            version=version,
            sample=sample,
            skills=self._curriculum.injected_skills,
            shown=self._shown(sample.task, version),
        )

    def _shown(self, task: Task, version: int) -> dict[int, tuple[InjectedSkill, ...]]:
        """What a scaffold shows each rollout; empty without one."""
        scaffold = self._variant.scaffold
        if scaffold is None:
            return {}
        return {
            rollout: scaffold.shown(
                self._curriculum.pairs,
                step=version + 1,
                task_id=task.id,
                rollout=rollout,
                group_size=self._rollouts_per_task,
            )
            for rollout in range(self._rollouts_per_task)
        }

    def _account_metrics(self) -> dict[str, float]:
        account = self._stream.account
        dropped = Counter(account.dropped)
        new = dropped - self._dropped
        self._dropped = dropped
        by_reason = {f"staleness/dropped_{reason}": float(new[reason]) for reason in DROP_REASONS}
        return by_reason | {
            "staleness/started_groups": float(account.num_started),
            "staleness/trained_groups": float(account.num_trained),
            "staleness/dropped_groups": float(account.dropped.total()),
            "staleness/failed_groups": float(account.failed.total()),
            "staleness/in_flight_groups": float(len(account.in_flight)),
            "staleness/finished_groups": float(self._stream.num_finished),
        }

    def state_dict(self) -> dict[str, Any]:
        """The account and what is in flight, as primitives; nothing that was generated."""
        # An interrupt may have come in the middle of a change: the account decides.
        is_open = set(self._stream.account.in_flight)
        known = {saved["serial"]: saved for saved in self._restored}
        known |= {one.serial: _saved(one) for one in self._stream.admissions}
        return {
            "account": self._stream.account.state_dict(),
            "in_flight": [known[serial] for serial in sorted(known.keys() & is_open)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: what was in flight is played again at the next `collect`."""
        self._stream.account.load_state_dict(state["account"])
        self._dropped = Counter(self._stream.account.dropped)
        self._restored = [dict(saved) for saved in state["in_flight"]]


def _saved(admission: Admission) -> dict[str, Any]:
    sample = admission.sample
    return {
        "serial": admission.serial,
        "task_id": sample.task.id,
        "reason": sample.reason,
        "tag": sample.tag,
        "capability": sample.capability.value if sample.capability else None,
        "numbers": dict(sample.numbers),
    }


def _sample(task: Task, saved: Mapping[str, Any]) -> SampledTask:
    capability = saved["capability"]
    return SampledTask(
        task=task,
        reason=saved["reason"],
        tag=saved["tag"],
        capability=Capability(capability) if capability else None,
        numbers=dict(saved["numbers"]),
    )
