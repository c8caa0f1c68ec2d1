"""What an agent did before its task begins: an ATIF document beside a task's files.

ATIF is the Agent Trajectory Interchange Format; `arise.evaluation.atif` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.tasks.fields import BrokenTaskError

FILE_NAME = "prior_context.json"
_READABLE = tuple(f"ATIF-v1.{minor}" for minor in range(9))


def read_prior_context(folder: Path) -> tuple[dict[str, str], ...]:
    """The messages of `prior_context.json` in a task's folder; none if there is no such file.

    Raises:
        BrokenTaskError: The file is no ATIF document.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return ()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return tuple(prior_messages(document if isinstance(document, dict) else {}))
    except (ValueError, ConfigError) as error:
        raise BrokenTaskError(path, f"is no ATIF document: {error}") from error


def with_prior_context(
    prior: Sequence[Mapping[str, str]], instruction: str
) -> list[dict[str, str]]:
    """The messages before an agent's first reply, without the system message.

    An instruction that would be the second message in a row of the user is added to the first one,
    which chat templates insist on.
    """
    messages = [dict(message) for message in prior]
    _append(messages, "user", instruction)
    return messages


def prior_messages(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The steps of an ATIF document as messages that a conversation goes on from.

    Tool calls become text, since a policy is asked in its own harness's notation; what came back
    becomes the user's. System messages are left out: the harness has its own.

    Raises:
        ConfigError: It is no ATIF document of a known version.
    """
    if document.get("schema_version") not in _READABLE:
        raise ConfigError(
            f"schema_version = {document.get('schema_version')!r} is not one of "
            f"{_READABLE[0]} to {_READABLE[-1]}"
        )
    steps = document.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ConfigError("steps of an ATIF document must be a list of objects")
    messages: list[dict[str, str]] = []
    for step in steps:
        source = step.get("source")
        if source not in ("system", "user", "agent"):
            raise ConfigError(f"source = {source!r} of a step is not one of system, user, agent")
        text = _text(step.get("message"))
        if source == "agent":
            _append(messages, "assistant", "\n".join([text, *_calls(step)]).strip())
            results = (step.get("observation") or {}).get("results") or []
            _append(messages, "user", "\n".join(_text(r.get("content")) for r in results))
        elif source == "user":
            _append(messages, source, text)
    return messages


def _append(messages: list[dict[str, str]], role: str, text: str) -> None:
    """Add a message; two of one role in a row become one, which templates insist on."""
    if not text:
        return
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += f"\n{text}"
    else:
        messages.append({"role": role, "content": text})


def _calls(step: Mapping[str, Any]) -> list[str]:
    shown = []
    for call in step.get("tool_calls") or []:
        arguments = call.get("arguments") or {}
        command = arguments.get("command")
        shown.append(
            command if isinstance(command, str) else f"{call.get('function_name')} {arguments}"
        )
    return shown


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
