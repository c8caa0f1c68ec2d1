"""The harness protocol: what drives a policy through one episode."""

from __future__ import annotations

from typing import Protocol

from arise.agents.recording import PolicySession
from arise.environments.base import Environment
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
