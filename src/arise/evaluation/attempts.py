"""The attempts of a benchmark as they are written, one line each, so that it can go on later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.types import RolloutFailure, Task, Trajectory

_SETTINGS, _LINES = "settings.json", "attempts.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one task.

    Attributes:
        task_id: The task.
        attempt: From 0 to M - 1.
        domain: Reporting group of the task.
        reward: Reward of the verifier; `None` if the attempt erred.
        error: Which boundary lost it; empty if none did.
        message: What went wrong.
        finish_reason: Why the agent ended; empty if the attempt erred.
        num_turns: Model calls.
        prompt_tokens: Tokens that the model read.
        completion_tokens: Tokens that the model generated.
        tool_calls: Tool calls tried.
        tool_errors: Those that could not be run.
        seconds: From the sandbox's start to the reward.
    """

    task_id: str
    attempt: int
    domain: str | None = None
    reward: float | None = None
    error: str = ""
    message: str = ""
    finish_reason: str = ""
    num_turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    seconds: float = 0.0

    @property
    def outcome(self) -> bool | None:
        """Whether the verifier confirms success, reward 1; `None` for an error."""
        return None if self.reward is None else self.reward >= 1.0


def attempt_of(task: Task, slot: Trajectory | RolloutFailure) -> Attempt:
    """What an episode comes to."""
    if isinstance(slot, RolloutFailure):
        return Attempt(
            task_id=task.id,
            attempt=slot.rollout,
            domain=task.domain,
            error=str(slot.kind),
            message=slot.message,
        )
    report = slot.harness
    return Attempt(
        task_id=task.id,
        attempt=slot.rollout,
        domain=task.domain,
        reward=slot.task_reward,
        finish_reason=str(slot.finish_reason),
        num_turns=len(slot.turns),
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.completion_tokens,
        tool_calls=report.num_tool_calls,
        tool_errors=report.num_tool_errors,
        seconds=round(sum(slot.durations_s.values()), 3),
    )


class AttemptLog:
    """The attempts of one evaluation, in its folder.

    Args:
        folder: The evaluation's folder; made if it is absent.
        settings: What the figures depend on.
        resume: Whether to go on with attempts that are there.

    Raises:
        ConfigError: There are attempts of other settings, or some although `resume` is off.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.folder = folder
        self._path = folder / _LINES
        self.attempts: dict[tuple[str, int], Attempt] = {}
        folder.mkdir(parents=True, exist_ok=True)
        told = folder / _SETTINGS
        if self._path.exists():
            if not resume:
                raise ConfigError(
                    f"{folder} holds an evaluation already, and resume=false; give another name, "
                    "or remove the folder"
                )
            _require_same(json.loads(told.read_text(encoding="utf-8")), settings, folder)
            self._read()
        else:
            told.write_text(json.dumps(settings, indent=2, sort_keys=True), encoding="utf-8")

    def _read(self) -> None:
        """What was written whole; a line that was torn by a sudden end is cut off."""
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        for line in whole.splitlines():
            attempt = Attempt(**json.loads(line))
            self.attempts[attempt.task_id, attempt.attempt] = attempt

    def forget_errors(self) -> None:
        """Leave out attempts that erred, so that they are played again."""
        self.attempts = {key: a for key, a in self.attempts.items() if not a.error}
        hidden = self._path.with_suffix(".new")
        hidden.write_text("".join(map(_line, self.attempts.values())), encoding="utf-8")
        hidden.replace(self._path)

    def add(self, attempt: Attempt) -> None:
        """Write an attempt down for good."""
        self.attempts[attempt.task_id, attempt.attempt] = attempt
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(attempt))
            file.flush()
            os.fsync(file.fileno())


def _line(attempt: Attempt) -> str:
    return json.dumps(asdict(attempt)) + "\n"


def _require_same(told: Mapping[str, Any], settings: Mapping[str, Any], folder: Path) -> None:
    now = json.loads(json.dumps(settings))
    changed = sorted(key for key in {*told, *now} if told.get(key) != now.get(key))
    if changed:
        key = changed[0]
        raise ConfigError(
            f"{folder} holds attempts with {key} = {told.get(key)!r}, now it is {now.get(key)!r}; "
            "they cannot be counted together. Give another name=..., or remove the folder"
        )
