"""A task's health check: what must succeed in the sandbox before the agent starts."""

from __future__ import annotations

import asyncio
import time

from arise.environments.base import Environment
from arise.errors import SandboxError
from arise.types import Healthcheck


async def wait_until_healthy(environment: Environment, check: Healthcheck) -> None:
    """Repeat the command until it gives 0.

    Raises:
        SandboxError: It failed `retries` times after the start period.
    """
    begin = time.monotonic()
    failures = 0
    while True:
        result = await environment.exec(f"( {check.command}\n)", timeout_s=check.timeout_s)
        if result.exit_code == 0:
            return
        is_starting = time.monotonic() - begin < check.start_period_s
        failures += not is_starting
        if failures >= max(1, check.retries):
            raise SandboxError(
                f"the task's health check failed {failures} times; its output ends: "
                f"{result.output[-500:].strip() or '(none)'}"
            )
        await asyncio.sleep(check.start_interval_s if is_starting else check.interval_s)
