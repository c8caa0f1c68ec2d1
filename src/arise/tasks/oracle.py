"""Runs reference solutions and the no-op: a good task gives 1 for the one and 0 for the other."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from arise.environments.base import Environment, EnvironmentFactory
from arise.environments.steps import prepare_step
from arise.environments.verifier import verify, verify_with
from arise.errors import SandboxError, VerifierError, one_line
from arise.types import Step, Task

_DEFAULT_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleReport:
    """What one task gave.

    Attributes:
        task_id: The task.
        oracle: Reward of its reference solution; `None` if there is none, or no reward.
        no_op: Reward of doing nothing; `None` if there was no reward.
        problems: What is wrong with the task, if anything.
        skipped: Why it was not run; empty if it was.
    """

    task_id: str
    oracle: float | None = None
    no_op: float | None = None
    problems: tuple[str, ...] = ()
    skipped: str = ""


async def run_oracles(
    tasks: Iterable[Task], environments: EnvironmentFactory, *, concurrency: int
) -> AsyncIterator[OracleReport]:
    """Run every task's solution and the no-op, in sandboxes of their own.

    Yields:
        One report per task, in the order of `tasks`.
    """
    slots = asyncio.Semaphore(concurrency)

    async def report(task: Task) -> OracleReport:
        reason = environments.unsupported(task)
        if reason is not None:
            return OracleReport(task_id=task.id, skipped=reason)
        async with slots:
            return await _report(task, environments)

    running = [asyncio.ensure_future(report(task)) for task in tasks]
    try:
        for future in running:
            yield await future
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _report(task: Task, environments: EnvironmentFactory) -> OracleReport:
    problems: list[str] = []
    rewards: dict[bool, float | None] = {}
    has_solution = task.solution is not None or any(step.solution for step in task.steps)
    for solve in (True, False):
        rewards[solve] = None
        if solve and not has_solution:
            continue
        name = "oracle" if solve else "no-op"
        try:
            rewards[solve] = await _episode(task, environments, solve=solve)
        except (SandboxError, VerifierError) as error:
            problems.append(f"{name}: {one_line(error)}")
    oracle, no_op = rewards[True], rewards[False]
    if oracle is not None and oracle < 1.0:
        problems.append(f"the oracle's reward is {oracle:g}, not 1")
    if no_op:
        problems.append(f"the no-op's reward is {no_op:g}, not 0")
    return OracleReport(task_id=task.id, oracle=oracle, no_op=no_op, problems=tuple(problems))


async def _episode(task: Task, environments: EnvironmentFactory, *, solve: bool) -> float:
    environment = environments.create(task, name="oracle" if solve else "no-op")
    try:
        await environment.start()
        if not task.steps:
            if solve:
                await _solve(environment, task, None)
            return await verify(environment, task)
        return await _episode_in_steps(task, environment, solve=solve)
    finally:
        await environment.stop()


async def _episode_in_steps(task: Task, environment: Environment, *, solve: bool) -> float:
    rewards: list[float] = []
    for index, step in enumerate(task.steps):
        await prepare_step(environment, step, is_first=index == 0, timeout_s=_DEFAULT_TIMEOUT_S)
        if solve and step.solution is not None:
            await _solve(environment, task, step)
        rewards.append(
            await verify_with(
                environment,
                step.tests,
                env=step.verifier_env,
                timeout_s=step.verifier_timeout_s,
            )
        )
        if step.min_reward is not None and rewards[-1] < step.min_reward:
            break
    return rewards[-1] if task.step_reward == "final" else sum(rewards) / len(rewards)


async def _solve(environment: Environment, task: Task, step: Step | None) -> None:
    """Upload a solution and run its script where the agent would start."""
    solution = task.solution if step is None else step.solution
    assert solution is not None
    script = "solve.sh" if (solution / "solve.sh").is_file() else "solution.sh"
    # BenchFlow's own place beside Harbor's.
    places = ["/solution", "/oracle"] if solution.name == "oracle" else ["/solution"]
    for place in places:
        await environment.upload(solution, place)
    variables = "".join(
        f"export {name}={shlex.quote(value)}; " for name, value in task.solution_env.items()
    )
    timeout_s = (step.agent_timeout_s if step else None) or task.agent_timeout_s
    result = await environment.exec(
        f"({variables}bash {places[-1]}/{script})", timeout_s=timeout_s or _DEFAULT_TIMEOUT_S
    )
    if result.exit_code != 0:
        tail = result.output[-500:].strip()
        raise SandboxError(f"the solution ended with exit code {result.exit_code}: {tail}")
