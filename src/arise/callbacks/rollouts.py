"""Rollouts before each training step, and the policy's weights back to the engine after it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lightning import Callback, LightningModule, Trainer

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.aio import EventLoopThread
from arise.algorithms.credit import CreditOptions, assign_credit, training_rows
from arise.algorithms.packing import WeightedRow
from arise.callbacks.asynchronous import AsynchronousRollouts
from arise.callbacks.probe import LogprobProbe
from arise.callbacks.references import InitialPolicy
from arise.callbacks.watch import TRAINING
from arise.curriculum.curriculum import Curriculum
from arise.errors import InferenceError
from arise.inference.base import Engine, SamplingParams
from arise.inference.weights import fingerprints, verify
from arise.modules.distribution import share_rows
from arise.modules.policy import PolicyModule
from arise.modules.rank_watch import RankWatch
from arise.rubrics.placebo import shuffled_reviews
from arise.rubrics.variant import Variant
from arise.types import InjectedSkill, Iteration, Review, Task, Trajectory


class Reviewer(Protocol):
    """Judges one trajectory; never raises for a judge that fails."""

    async def review(self, task: Task, trajectory: Trajectory, pairs: Sequence[Any]) -> Review:
        """Verdicts on `pairs`, and diagnostics."""

    def pop_metrics(self) -> dict[str, float]:
        """`judge/*` scalars since the last call."""

    def require_judge(self) -> None:
        """Raise `JudgeError` if a judge that is away is to end the run."""


class RolloutCallback(Callback):
    """Fills an iteration: episodes, verdicts, rewards, advantages, this rank's micro-batches.

    Args:
        loop: The run's event loop.
        engine: Plays the policy; started here, on rank 0.
        orchestrator: Runs episodes.
        curriculum: Owner of the pool, which says what is judged.
        judge: Reviews trajectories as soon as they are graded; `None` if there are no rubrics.
        credit: Constants of rewards and advantages.
        sampling: Sampling parameters of training rollouts.
        rollouts_per_task: G.
        micro_batch_tokens: Most tokens of one forward pass.
        max_lost_iterations: Iterations in a row without a survivor that end the run.
        variant: What a baseline or control does otherwise.
        references: Rollouts of the initial policy, if the variant compares with them.
        asynchronous: Plays groups all the time; `None` rolls out step by step.
        watch: Lets the other ranks wait for this one.
    """

    def __init__(
        self,
        *,
        loop: EventLoopThread,
        engine: Engine,
        orchestrator: Orchestrator,
        curriculum: Curriculum,
        judge: Reviewer | None,
        credit: CreditOptions,
        sampling: SamplingParams,
        rollouts_per_task: int,
        micro_batch_tokens: int,
        max_lost_iterations: int,
        variant: Variant | None = None,
        references: InitialPolicy | None = None,
        asynchronous: AsynchronousRollouts | None = None,
        watch: RankWatch,
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._orchestrator = orchestrator
        self._curriculum = curriculum
        self._judge = judge
        self._credit = credit
        self._sampling = sampling
        self._rollouts_per_task = rollouts_per_task
        self._micro_batch_tokens = micro_batch_tokens
        self._max_lost_iterations = max_lost_iterations
        self._num_lost_iterations = 0
        self._variant = variant or Variant()
        self._references = references
        self._asynchronous = asynchronous
        self._watch = watch
        self._weights: Mapping[str, Any] = {}
        self._probe = LogprobProbe(loop=loop, engine=engine, sampling=sampling)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the engine with the restored weights: before the first request, resumed or not."""
        if trainer.is_global_zero:
            self._loop.run(self._engine.start())
        self._watch.meet()
        self._push_weights(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Iteration, batch_idx: int
    ) -> None:
        """Roll out, judge and share out the rows."""
        rows: list[WeightedRow] = []
        if trainer.is_global_zero:
            started = time.perf_counter()
            self._fill(batch)
            batch.durations_s["rollout"] = time.perf_counter() - started
            self._engine.require_alive()
            self._require_survivors(batch)
            live = self._curriculum.live_pair_ids
            assign_credit(batch, self._credit, live_pair_ids=live)
            rows = training_rows(batch)
        assert isinstance(pl_module, PolicyModule)
        assert pl_module.policy is not None
        self._watch.meet()
        self._watch.enter(TRAINING, batch.index, is_bounded=True)
        share_rows(
            batch,
            rows,
            layout=pl_module.policy.layout,
            max_tokens=self._micro_batch_tokens,
            num_replica_ranks=pl_module.policy.num_replica_ranks,
        )
        batch.durations_s["train_started"] = time.perf_counter()

    def _fill(self, iteration: Iteration) -> None:
        """Groups and reviews: the oldest batch that is ready, or played now."""
        if self._asynchronous is None:
            self._loop.run(self._collect(iteration))
            self._loop.run(self._engine.rest())
            return
        self._asynchronous.collect(iteration)
        self._loop.run(self._review_online(iteration))
        if self._judge is not None and self._variant.online is None:
            iteration.reviews = self._as_reported(iteration, iteration.reviews)
            iteration.metrics.update(self._judge.pop_metrics())
            self._judge.require_judge()

    async def _collect(self, iteration: Iteration) -> None:
        """Episodes and their reviews, into slots."""
        plan = RolloutPlan(
            tasks=iteration.tasks,
            rollouts_per_task=self._rollouts_per_task,
            version=iteration.index,
            sampling=self._sampling,
            skills=iteration.skills,
            shown=self._shown(iteration),
            strips_skills=self._variant.strips_scaffold,
        )
        if self._judge is None or self._variant.online is not None:
            iteration.groups = await self._orchestrator.run(plan)
            await self._review_online(iteration)
            return
        # The pool is fixed for all groups here: synchronously nothing is born in between.
        judge, pairs = self._judge, self._curriculum.pairs
        reviews: list[list[Review | None]] = [
            [None] * self._rollouts_per_task for _ in iteration.samples
        ]

        async def review(index: int, trajectory: Trajectory) -> None:
            task = iteration.samples[index].task
            reviews[index][trajectory.rollout] = await judge.review(task, trajectory, pairs)

        iteration.groups = await self._orchestrator.run(plan, on_trajectory=review)
        iteration.reviews = self._as_reported(iteration, reviews)
        iteration.metrics.update(judge.pop_metrics())
        judge.require_judge()

    def _shown(self, iteration: Iteration) -> dict[tuple[int, int], tuple[InjectedSkill, ...]]:
        """What a scaffold shows each rollout; empty without one."""
        scaffold = self._variant.scaffold
        if scaffold is None:
            return {}
        return {
            (index, rollout): scaffold.shown(
                self._curriculum.pairs,
                step=iteration.index + 1,
                task_id=task.id,
                rollout=rollout,
                group_size=self._rollouts_per_task,
            )
            for index, task in enumerate(iteration.tasks)
            for rollout in range(self._rollouts_per_task)
        }

    async def _review_online(self, iteration: Iteration) -> None:
        """Criteria of this iteration alone, if the variant elicits them."""
        if self._variant.online is None:
            return
        references = None
        if self._references is not None:
            references = await self._references.groups(
                iteration.tasks, current=self._weights, version=iteration.index
            )
        await self._variant.online.review(iteration, references)

    def _as_reported(
        self, iteration: Iteration, reviews: list[list[Review | None]]
    ) -> list[list[Review | None]]:
        """The reviews; in the placebo control, each group's verdicts shuffled."""
        seed = self._variant.shuffle_seed
        if seed is None:
            return reviews
        return [
            shuffled_reviews(own, seed=seed, iteration=iteration.index, task_id=task.id)
            for own, task in zip(reviews, iteration.tasks, strict=True)
        ]

    def _require_survivors(self, iteration: Iteration) -> None:
        """End a run whose engine or sandboxes are gone for good, instead of counting failures.

        Raises:
            InferenceError: Several iterations in a row lost every rollout.
        """
        if any(group.trajectories for group in iteration.groups):
            self._num_lost_iterations = 0
            return
        self._num_lost_iterations += 1
        if self._num_lost_iterations >= self._max_lost_iterations:
            failures = [failure for group in iteration.groups for failure in group.failures]
            first = "no task was left to play"
            if failures:
                first = f"its first failure ({failures[0].kind}): {failures[0].message}"
            raise InferenceError(
                f"{self._num_lost_iterations} iterations in a row lost every rollout; of the last "
                f"one, {first}. The newest checkpoint is from before; "
                "rollout.max_lost_iterations sets the patience"
            )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Give the engine the new policy and prove that it arrived."""
        started = batch.durations_s.pop("train_started")
        now = time.perf_counter()
        batch.durations_s["train"] = now - started
        batch.metrics.update(self._push_weights(trainer, pl_module))
        if self._asynchronous is not None and trainer.is_global_zero:
            batch.metrics.update(self._asynchronous.advance(trainer.global_step))
        batch.durations_s["sync"] = time.perf_counter() - now

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the episodes that nobody waits for any more."""
        if self._asynchronous is not None:
            self._asynchronous.close()

    def state_dict(self) -> dict[str, Any]:
        """What is in flight; nothing if rollouts are synchronous."""
        return {} if self._asynchronous is None else self._asynchronous.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Play again what was in flight; a synchronous run leaves it."""
        if self._asynchronous is not None:
            self._asynchronous.load_state_dict(state_dict)

    def _push_weights(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Version k is the policy after k optimizer steps; metrics of the engine's health."""
        assert isinstance(pl_module, PolicyModule)
        assert pl_module.policy is not None
        weights = pl_module.policy.full_weights(is_kept=trainer.is_global_zero)
        if trainer.is_global_zero:
            self._load(weights, trainer.global_step, trainer.strategy.root_device)
        self._watch.meet()
        return self._probe.measure(pl_module.policy, is_asking=trainer.is_global_zero)

    def _load(self, weights: Mapping[str, Any], version: int, device: Any) -> None:
        if self._references is not None:
            self._weights = weights
        report = self._loop.run(self._engine.load_weights(weights, version=version))
        expected = fingerprints(weights, dtype=self._engine.dtype, device=device)
        verify(expected, report, version=version)
