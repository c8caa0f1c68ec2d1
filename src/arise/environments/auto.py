"""`environment=auto`: the first kind of sandbox that works on this machine."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from arise.environments.base import Environment, EnvironmentFactory
from arise.errors import ConfigError
from arise.types import Task

_logger = logging.getLogger(__name__)


class AutoFactory:
    """Tries factories in order, and is from then on the first whose `check` passes.

    Args:
        candidates: Factories by the name under which a user chooses them, best first.

    Raises:
        ConfigError: No candidates were given.
    """

    def __init__(self, *, candidates: Mapping[str, EnvironmentFactory]) -> None:
        if not candidates:
            raise ConfigError("environment.candidates must name at least one kind of sandbox")
        self._candidates = dict(candidates)
        self._chosen: EnvironmentFactory | None = None

    def check(self) -> None:
        """Choose.

        Raises:
            ConfigError: None works; the message gives the reason of each.
        """
        reasons: list[str] = []
        for name, factory in self._candidates.items():
            try:
                factory.check()
            except ConfigError as error:
                factory.close()
                reasons.append(f"- {name}: {error}")
                continue
            _logger.info("environment=auto: using %s", name)
            self._chosen = factory
            return
        raise ConfigError(
            "environment=auto: no kind of sandbox works on this machine.\n" + "\n".join(reasons)
        )

    def unsupported(self, task: Task) -> str | None:
        """Why `task` cannot run in the chosen kind of sandbox; `None` if it can."""
        return self._get().unsupported(task)

    def create(self, task: Task, *, name: str) -> Environment:
        """A new environment of the chosen kind."""
        return self._get().create(task, name=name)

    def close(self) -> None:
        """Release what the candidates hold."""
        for factory in self._candidates.values():
            factory.close()

    def _get(self) -> EnvironmentFactory:
        if self._chosen is None:
            self.check()
        assert self._chosen is not None
        return self._chosen
