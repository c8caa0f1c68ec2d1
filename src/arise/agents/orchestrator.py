"""Runs B × G episodes at once: sandbox, agent loop, grading, and whatever follows an episode.

Results go into slots (task, rollout), so nothing downstream depends on completion order. An
infrastructure failure becomes a typed `RolloutFailure` in its slot.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from arise.agents.clock import AgentClock
from arise.agents.gate import GenerationGate
from arise.agents.harness import Harness
from arise.agents.recording import PolicySession
from arise.agents.rendering import ChatRenderer
from arise.agents.steps import StepwiseEpisode
from arise.environments.base import Environment, EnvironmentFactory
from arise.environments.verifier import verify
from arise.errors import (
    ConfigError,
    HarnessError,
    InferenceError,
    SandboxError,
    VerifierError,
    one_line,
)
from arise.inference.base import Engine, SamplingParams
from arise.types import (
    FailureKind,
    FinishReason,
    InjectedSkill,
    RolloutFailure,
    Task,
    Trajectory,
    TrajectoryGroup,
)

log = logging.getLogger(__name__)

_KINDS = (
    (InferenceError, FailureKind.INFERENCE),
    (SandboxError, FailureKind.SANDBOX),
    (VerifierError, FailureKind.VERIFIER),
    (HarnessError, FailureKind.HARNESS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What to roll out.

    Attributes:
        tasks: B tasks.
        rollouts_per_task: G.
        version: Part of every seed: the policy version in training, 0 in evaluation, so that two
            evaluations differ by the policy alone.
        sampling: Base sampling parameters.
        skills: Skills in every system prompt.
        purpose: Keeps the seeds of training and evaluation apart.
        shown: What single rollouts, by (task index, rollout), are shown instead of `skills`.
        strips_skills: Whether what is shown is left out of the prompts that are trained on.
        skip: Rollouts, by (task index, rollout), that are not played: an interrupted evaluation
            has them already.
        first_index: Index of the first task: plans whose episodes run side by side number their
            tasks apart, because the index is part of an episode's key in the engine.
    """

    tasks: Sequence[Task]
    rollouts_per_task: int
    version: int
    sampling: SamplingParams
    skills: tuple[InjectedSkill, ...] = ()
    purpose: str = "train"
    shown: Mapping[tuple[int, int], tuple[InjectedSkill, ...]] = field(default_factory=dict)
    strips_skills: bool = False
    skip: frozenset[tuple[int, int]] = frozenset()
    first_index: int = 0

    def task_of(self, session: tuple[int, int]) -> Task:
        """Task of rollout (task index, rollout)."""
        return self.tasks[session[0] - self.first_index]

    def skills_of(self, session: tuple[int, int]) -> tuple[InjectedSkill, ...]:
        """Skills in the system prompt of rollout (task index, rollout)."""
        return self.shown.get(session, self.skills)


class Orchestrator:
    """Turns plans into trajectory groups.

    Args:
        engine: Plays the policy.
        environments: Makes sandboxes.
        harness: Drives the agent loop.
        renderer: Token-exact chat rendering.
        context_tokens: Most tokens of an episode.
        max_in_flight: Most sandboxes at once; `None` runs all episodes together.
        default_timeout_s: Wall-clock limit of an episode whose task gives none.
        deterministic: Lockstep generation, with an engine that can.
        seed: The run's seed.
        make_session: Makes the policy's side of an episode; another one plays a model that gives
            no token ids, in evaluation.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        environments: EnvironmentFactory,
        harness: Harness,
        renderer: ChatRenderer,
        context_tokens: int,
        max_in_flight: int | None,
        default_timeout_s: float,
        deterministic: bool,
        seed: int,
        make_session: Callable[..., PolicySession] = PolicySession,
    ) -> None:
        self._make_session = make_session
        self._engine = engine
        self._environments = environments
        self._harness = harness
        self._renderer = renderer
        self._context_tokens = context_tokens
        self._max_in_flight = max_in_flight
        self._default_timeout_s = default_timeout_s
        # An engine that batches by itself never batches alike twice.
        self._deterministic = deterministic and not engine.is_concurrent
        self._seed = seed
        # For a display: how far the plan is, and whose it is.
        self.num_finished = self.num_planned = 0
        self.purpose = ""

    @property
    def engine(self) -> Engine:
        """What plays the policy."""
        return self._engine

    @property
    def is_lockstep(self) -> bool:
        """Whether every batch waits for all live episodes."""
        return self._deterministic

    async def start(self) -> None:
        """Bring up what all episodes share; safe to repeat."""
        await self._harness.start()

    async def run(
        self,
        plan: RolloutPlan,
        *,
        on_trajectory: Callable[[int, Trajectory], Awaitable[None]] | None = None,
        on_failure: Callable[[int, RolloutFailure], Awaitable[None]] | None = None,
    ) -> list[TrajectoryGroup]:
        """Roll out every task G times.

        Args:
            plan: What to roll out.
            on_trajectory: Awaited with (task index, trajectory) as soon as an episode is graded,
                while other episodes still run.
            on_failure: The same for an episode that was lost.

        Returns:
            One group per task, in the order of `plan.tasks`, without what the plan skips.

        Raises:
            ConfigError: An episode showed that the configuration is impossible.
        """
        self.num_finished = 0
        await self.start()
        gate = GenerationGate(self._engine, lockstep=self._deterministic)
        queue = [
            (index, rollout)
            for index in range(len(plan.tasks))
            for rollout in range(plan.rollouts_per_task)
            if (index, rollout) not in plan.skip
        ]
        self.num_planned, self.purpose = len(queue), plan.purpose
        slots: dict[tuple[int, int], Trajectory | RolloutFailure] = {}
        limit = self._max_in_flight or max(1, len(queue))
        # Grading needs the sandbox still, when the next episode is already admitted.
        sandboxes = asyncio.Semaphore(limit)
        waiting = iter(queue)

        async def play(session: tuple[int, int], admit: Callable[[], None]) -> None:
            async with sandboxes:
                result = await self.episode(plan, session, gate, admit)
            slots[session] = result
            if on_trajectory is not None and isinstance(result, Trajectory):
                await on_trajectory(session[0], result)
            if on_failure is not None and isinstance(result, RolloutFailure):
                await on_failure(session[0], result)
            self.num_finished += 1

        try:
            async with asyncio.TaskGroup() as group:

                def admit() -> None:
                    session = next(waiting, None)
                    if session is not None:
                        gate.enter(session)
                        group.create_task(play(session, admit))

                for _ in range(limit):
                    admit()
        except BaseExceptionGroup as errors:
            # The first one tells what is wrong; the others were cancelled or say the same.
            raise errors.exceptions[0] from errors
        return [
            TrajectoryGroup(
                task=task,
                slots=tuple(
                    slots[index, j]
                    for j in range(plan.rollouts_per_task)
                    if (index, j) not in plan.skip
                ),
            )
            for index, task in enumerate(plan.tasks)
        ]

    async def episode(
        self,
        plan: RolloutPlan,
        session: tuple[int, int],
        gate: GenerationGate,
        admit: Callable[[], None],
    ) -> Trajectory | RolloutFailure:
        """One episode from sandbox to reward; never raises for a fault of infrastructure.

        Args:
            plan: What it is part of.
            session: (task index, rollout); entered into `gate`, which it leaves.
            gate: The way to the engine.
            admit: Called when the agent has finished and the next episode may begin, before
                this one leaves the gate; not called if the episode is cancelled.

        Raises:
            ConfigError: The episode showed that the configuration is impossible.
        """
        index, rollout = session
        task = plan.task_of(session)
        environment: Environment | None = None
        steps: StepwiseEpisode | None = None
        try:
            try:
                environment = self._environments.create(
                    self._harness.outfit(task), name=f"{index}-{rollout}"
                )
                if task.steps:
                    steps = StepwiseEpisode(
                        task, environment, setup_timeout_s=self._default_timeout_s
                    )
                trajectory = await self._play(plan, session, gate, environment, steps)
            finally:
                # The newcomer is admitted first: in lockstep the next batch must wait for it.
                if not _is_cancelled():
                    admit()
                gate.leave(session)
            started = time.perf_counter()
            reward = await (steps.grade() if steps else verify(environment, task))
            durations = {**trajectory.durations_s, "verify": time.perf_counter() - started}
            return replace(trajectory, task_reward=reward, durations_s=durations)
        except ConfigError:
            raise
        except (HarnessError, InferenceError, SandboxError, VerifierError) as error:
            kind = next(kind for type_, kind in _KINDS if isinstance(error, type_))
            return self._failure(task, rollout, kind, error)
        except Exception as error:
            log.exception("episode %s/%d failed unexpectedly", task.id, rollout)
            return self._failure(task, rollout, FailureKind.HARNESS, error)
        finally:
            await asyncio.shield(self._clean_up(session, environment))

    def _failure(
        self, task: Task, rollout: int, kind: FailureKind, error: Exception
    ) -> RolloutFailure:
        message = one_line(error)
        log.warning("rollout %s/%d lost (%s): %s", task.id, rollout, kind, message)
        return RolloutFailure(task_id=task.id, rollout=rollout, kind=kind, message=message)

    async def _clean_up(self, session: tuple[int, int], environment: Environment | None) -> None:
        """Remove what the episode held; a graded trajectory is not lost because that fails."""
        try:
            if environment is not None:
                await environment.stop()
        except Exception:
            log.exception("the sandbox of episode %d-%d was not removed", *session)
        try:
            await self._engine.release(session)
        except InferenceError as error:
            log.warning("the engine did not release episode %d-%d: %s", *session, error)

    async def _play(
        self,
        plan: RolloutPlan,
        session: tuple[int, int],
        gate: GenerationGate,
        environment: Environment,
        steps: StepwiseEpisode | None,
    ) -> Trajectory:
        """Start the sandbox and run the agent loop within its time limit, or that of each step."""
        rollout = session[1]
        task = plan.task_of(session)
        clock = AgentClock(counts_model_calls=not self._deterministic)
        policy = self._make_session(
            session=session,
            renderer=self._renderer,
            generate=clock.watched(gate.generate),
            sampling=plan.sampling,
            seed_parts=(self._seed, plan.purpose, plan.version, task.id, rollout),
            context_tokens=self._context_tokens,
            skills=plan.skills_of(session),
            strips_skills=plan.strips_skills,
            is_training=plan.purpose == "train",
        )
        started = time.perf_counter()
        await environment.start()
        ready = time.perf_counter()

        async def run(part: Task) -> FinishReason:
            try:
                async with clock.limit(part.agent_timeout_s or self._default_timeout_s) as limit:
                    return await self._harness.run(part, policy, environment)
            except TimeoutError:
                if not limit.expired():
                    raise
                return FinishReason.TIMEOUT

        reason = await (steps.play(run) if steps else run(task))
        return Trajectory(
            task_id=task.id,
            rollout=rollout,
            turns=tuple(policy.turns),
            finish_reason=reason,
            task_reward=0.0,
            skills=plan.skills_of(session),
            instruction=task.instruction,
            durations_s={"start": ready - started, "agent": time.perf_counter() - ready},
            harness=policy.report,
        )


def _is_cancelled() -> bool:
    """Whether the current task is being cancelled from outside (a time limit is not)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
