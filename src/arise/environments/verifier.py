"""From the files a test run leaves to a reward, strictly: whatever is unclear raises.

A verifier that could not decide is never a reward of 0: the trajectory is dropped instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arise.environments.base import Environment
from arise.errors import VerifierError
from arise.types import Task

_MAX_BYTES = 65_536
_TAIL_CHARACTERS = 2000
# `float` alone accepts nan, inf, 1_0 and digits of other scripts.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHITE_SPACE = " \t\r\n"


async def verify(environment: Environment, task: Task) -> float:
    """Grade the final state of `environment` with the tests of `task`.

    Returns:
        The task reward R_task, in [0, 1].

    Raises:
        VerifierError: The tests gave no clear reward; the message ends with their output.
        SandboxError: The sandbox died.
    """
    return await verify_with(
        environment,
        (*task.extra_tests, task.tests) if task.extra_tests else task.tests,
        env=task.verifier_env,
        timeout_s=task.verifier_timeout_s,
    )


async def verify_with(
    environment: Environment,
    tests: Path | Sequence[Path],
    *,
    env: Mapping[str, str],
    timeout_s: float,
) -> float:
    """Grade with the given tests: of a task, or of one of its steps; see `verify`."""
    files = await environment.grade(tests, env=env, timeout_s=timeout_s)
    try:
        return parse_reward(files)
    except VerifierError as error:
        output = (files.get("output") or b"").decode("utf-8", errors="replace")
        tail = output[-_TAIL_CHARACTERS:].strip()
        raise VerifierError(f"{error}; the tests' output ends: {tail or '(none)'}") from None


def parse_reward(files: Mapping[str, bytes | None]) -> float:
    r"""The reward that the tests wrote.

    `reward.json` wins over `reward.txt` wherever it exists, even if it is broken. It is a flat
    object of finite numbers, and the reward is its key `reward`, or its only key. `reward.txt`
    is one decimal number, white space around it allowed. Nothing is clamped or guessed.

    Args:
        files: Content by name, `None` where the file is absent.

    Raises:
        VerifierError: No file, too large, not one finite number, or outside [0, 1].

    Example:
        >>> parse_reward({"reward.json": None, "reward.txt": b"0.5\n"})
        0.5
    """
    for name, parse in (("reward.json", _parse_json), ("reward.txt", _parse_text)):
        data = files.get(name)
        if data is None:
            continue
        if len(data) > _MAX_BYTES:
            raise VerifierError(f"{name} is larger than {_MAX_BYTES} bytes")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise VerifierError(f"{name} is not UTF-8 text: {_shown(data)}") from None
        reward = parse(text)
        if not 0.0 <= reward <= 1.0:
            raise VerifierError(f"{name}: the reward must be in [0, 1], got {reward!r}")
        return reward
    raise VerifierError("the tests wrote neither reward.json nor reward.txt in /logs/verifier")


def _parse_text(text: str) -> float:
    number = text.strip(_WHITE_SPACE)
    if not _NUMBER.fullmatch(number):
        raise VerifierError(f"reward.txt must hold one number, got {_shown(text.encode())}")
    return float(number)


def _parse_json(text: str) -> float:
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise VerifierError(f"reward.json: {error}, got {_shown(text.encode())}") from None
    if not isinstance(value, dict) or not value:
        raise VerifierError(
            f"reward.json must be an object of numbers, got {_shown(text.encode())}"
        )
    for key, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise VerifierError(f"reward.json: {key!r} must be a number, got {number!r:.100}")
        if isinstance(number, float) and not math.isfinite(number):
            raise VerifierError(f"reward.json: {key!r} must be finite, got {number!r}")
    if "reward" in value:
        return _as_float(value["reward"])
    if len(value) == 1:
        return _as_float(next(iter(value.values())))
    raise VerifierError(f"reward.json: no key `reward` among {sorted(value)!r:.200}")


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise VerifierError("reward.json: the reward must be in [0, 1], got a huge one") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _shown(data: bytes) -> str:
    return repr(data[:100]) + ("..." if len(data) > 100 else "")
