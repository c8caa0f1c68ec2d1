"""The harness protocol: what drives a policy through one episode."""

from __future__ import annotations

from typing import Protocol

from arise.agents.recording import PolicySession
from arise.environments.base import Environment
from arise.errors import ConfigError
from arise.types import FinishReason, Task


class Harness(Protocol):
    """Runs an agent loop; one object serves all episodes of a run and keeps no state of them."""

    observation_role: str

    async def start(self) -> None:
        """Bring up what all episodes share; called before each batch of them."""

    def outfit(self, task: Task) -> Task:
        """The task with what the harness needs in its sandbox."""
        return task

    async def run(
        self, task: Task, session: PolicySession, environment: Environment
    ) -> FinishReason:
        """Play one episode; turns are recorded on `session`.

        Raises:
            InferenceError: The engine failed.
            SandboxError: The sandbox failed.
            HarnessError: The agent could not be run.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Release what `start` brought up; safe to call more than once."""


def require_limits(*, command_timeout_s: float, **counts: int) -> None:
    """Refuse limits of an agent loop that allow nothing.

    Args:
        command_timeout_s: Seconds a command may take, above 0.
        **counts: Other limits by key, 1 or more each.

    Raises:
        ConfigError: A value is out of range.
    """
    for key, value in counts.items():
        if value < 1:
            raise ConfigError(f"harness.{key} = {value} must be at least 1")
    if not command_timeout_s > 0:
        raise ConfigError(f"harness.command_timeout_s = {command_timeout_s} must be above 0")
