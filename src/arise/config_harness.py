"""Schemas of the `harness` group; see `arise.config`."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass
class Shell:
    """The shell agent; see `configs/harness/shell.yaml`."""

    _target_: str = MISSING
    system_prompt: str = MISSING
    action_format: str = MISSING
    submit: str = MISSING
    max_turns: int = MISSING
    max_output_tokens: int = MISSING
    command_timeout_s: float = MISSING
    max_observation_chars: int = MISSING
    observation_role: str = MISSING


@dataclass
class Tools:
    """The tool agent; see `configs/harness/tools.yaml`."""

    _target_: str = MISSING
    system_prompt: str = MISSING
    max_turns: int = MISSING
    max_output_tokens: int = MISSING
    command_timeout_s: float = MISSING
    max_observation_chars: int = MISSING
    observation_role: str = MISSING


@dataclass
class Terminus2:
    """The terminal agent; see `configs/harness/terminus2.yaml`."""

    _target_: str = MISSING
    notation: str = MISSING
    max_turns: int = MISSING
    max_output_tokens: int = MISSING
    summarize_below_tokens: int | None = MISSING
    observation_role: str = MISSING


@dataclass
class External:
    """An agent program of somebody else; see `configs/harness/external.yaml`."""

    _target_: str = MISSING
    name: str = MISSING
    command: str = MISSING
    env: dict[str, str] = MISSING
    files: dict[str, str] = MISSING
    mounts: dict[str, str] = MISSING
    skill_folders: list[str] = MISSING
    forwarder: str | None = MISSING
    port: int = MISSING
    max_turns: int = MISSING
    max_output_tokens: int = MISSING
    max_refused_calls: int = MISSING
    first_call_timeout_s: float = MISSING
    observation_role: str = MISSING


HARNESS_SCHEMAS: tuple[tuple[str, str, type], ...] = (
    ("harness", "shell_schema", Shell),
    ("harness", "tools_schema", Tools),
    ("harness", "terminus2_schema", Terminus2),
    ("harness", "external_schema", External),
)
