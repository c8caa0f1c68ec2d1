"""Getting a sandbox ready for one step of a task in several steps."""

from __future__ import annotations

from arise.environments.base import Environment
from arise.environments.health import wait_until_healthy
from arise.errors import SandboxError
from arise.types import Step

_SETUP = "if [[ -f setup.sh ]]; then bash setup.sh; fi"


async def prepare_step(
    environment: Environment, step: Step, *, is_first: bool, timeout_s: float
) -> None:
    """Hide the tests of the step before, put the step's files in place and run its `setup.sh`.

    Args:
        environment: Started; graded, unless this is the first step.
        step: The step that begins.
        is_first: Whether no step came before.
        timeout_s: Limit on each command, in seconds.

    Raises:
        SandboxError: The sandbox died, `setup.sh` failed, or the step's health check did.
    """
    if not is_first:
        await environment.resume()
    if step.workdir is not None:
        place = await environment.exec("pwd", timeout_s=timeout_s)
        await environment.upload(step.workdir, place.output.strip())
        result = await environment.exec(_SETUP, timeout_s=timeout_s)
        if result.exit_code != 0:
            raise SandboxError(
                f"setup.sh of step {step.name} failed; its output ends: "
                f"{result.output[-500:].strip() or '(none)'}"
            )
    if step.healthcheck is not None:
        await wait_until_healthy(environment, step.healthcheck)
