"""Tasks in several steps: one sandbox, one conversation per step, tests after every step.

An episode of such a task is one trajectory. Each step starts a new conversation, thus a new token
row, on the files that the step before left; its own tests grade it before the next one begins.
The episode ends after the last step, or after one whose reward is below its `min_reward`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from arise.environments.base import Environment
from arise.environments.steps import prepare_step
from arise.environments.verifier import verify_with
from arise.types import FinishReason, Step, Task


class StepwiseEpisode:
    """Plays and grades the steps of one episode.

    The last step that was played is not graded by `play` but by `grade`, as an ordinary task is.

    Args:
        task: A task with steps.
        environment: The episode's sandbox, started.
        setup_timeout_s: Limit on preparing one step, in seconds.
    """

    def __init__(self, task: Task, environment: Environment, *, setup_timeout_s: float) -> None:
        self._task = task
        self._environment = environment
        self._setup_timeout_s = setup_timeout_s
        self._rewards: list[float] = []
        self._ungraded: Step | None = None

    async def play(self, run: Callable[[Task], Awaitable[FinishReason]]) -> FinishReason:
        """Play the steps in order.

        Args:
            run: Runs the agent on a task that is one step, within that step's time limit.

        Returns:
            Why the agent ended the last step.

        Raises:
            SandboxError: The sandbox died, or a step's `setup.sh` failed.
            VerifierError: The tests of a step gave no clear reward.
        """
        reason = FinishReason.SUBMITTED
        for index, step in enumerate(self._task.steps):
            if self._ungraded is not None and not await self._passes(self._ungraded):
                break
            await prepare_step(
                self._environment, step, is_first=index == 0, timeout_s=self._setup_timeout_s
            )
            self._ungraded = step
            reason = await run(as_task(self._task, step))
        return reason

    async def grade(self) -> float:
        """Grade the last step, and give the reward of the task."""
        if self._ungraded is not None:
            await self._passes(self._ungraded)
        if self._task.step_reward == "final":
            return self._rewards[-1]
        return sum(self._rewards) / len(self._rewards)

    async def _passes(self, step: Step) -> bool:
        self._ungraded = None
        reward = await verify_with(
            self._environment, step.tests, env=step.verifier_env, timeout_s=step.verifier_timeout_s
        )
        self._rewards.append(reward)
        return step.min_reward is None or reward >= step.min_reward


def as_task(task: Task, step: Step) -> Task:
    """One step as the task that the agent sees."""
    return replace(
        task,
        instruction=step.instruction,
        agent_timeout_s=step.agent_timeout_s or task.agent_timeout_s,
        solution=step.solution,
        steps=(),
    )
