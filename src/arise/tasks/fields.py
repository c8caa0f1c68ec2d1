"""Tables of a task's manifest that know where they came from, whatever its format."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.types import EnvironmentSpec, Healthcheck

CORPUS_KEY = "datamodule.corpus"

_CANARY = re.compile(r"\A(?:[ \t]*(?:<!--.*?canary.*?-->|#.*canary.*)[ \t]*\r?\n)+", re.IGNORECASE)
_HOST_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*$", re.IGNORECASE)
_MIB_PER_UNIT = {"": 1 / 2**20, "K": 1 / 2**10, "M": 1, "G": 2**10, "T": 2**20}
_NETWORK_MODES = ("public", "no-network", "allowlist")

log = logging.getLogger(__name__)


class BrokenTaskError(ConfigError):
    """A task folder that cannot be used; says file, field and reason.

    Args:
        file: The file at fault.
        reason: What is wrong with it, with the value given.
        field: The field at fault; empty if it is the file itself.
    """

    def __init__(self, file: Path, reason: str, *, field: str = "") -> None:
        super().__init__(f"{file}: {f'{field} ' if field else ''}{reason} ({CORPUS_KEY})")
        self.file = file
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A TOML table that knows where it came from, so that every complaint names file and field."""

    file: Path
    name: str
    values: Mapping[str, Any]

    def number(self, field: str) -> float | None:
        """A limit: positive and finite, or not given."""
        value = self.values.get(field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or (is_number and 0 < value < math.inf):
            return value
        return self.complain(field, value, "a number above 0")

    def count(self, field: str) -> int:
        """A number of things."""
        value = self.values.get(field) or 0
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        return self.complain(field, value, "a whole number of at least 0")

    def flag(self, field: str) -> bool:
        """A truth value, false if not given."""
        value = self.values.get(field)
        value = False if value is None else value
        return value if isinstance(value, bool) else self.complain(field, value, "true or false")

    def text(self, field: str) -> str | None:
        """A string."""
        value = self.values.get(field)
        if value is None or isinstance(value, str):
            return value
        return self.complain(field, value, "a string")

    def env(self, field: str) -> dict[str, str]:
        """Environment variables, with those of the host put in."""
        value = self.values.get(field)
        value = {} if value is None else value
        if not isinstance(value, dict):
            self.complain(field, value, "a table of strings")
        for key, entry in value.items():
            if not isinstance(entry, str):
                self.complain(f"{field}.{key}", entry, "a string")
        return {key: self._expand(f"{field}.{key}", entry) for key, entry in value.items()}

    def _expand(self, field: str, entry: str) -> str:
        """Replace `${VAR}` and `${VAR:-default}` from the host's environment."""

        def replacement(match: re.Match[str]) -> str:
            value = os.environ.get(match[1], match[2])
            if value is None:
                self.complain(field, entry, f"usable: {match[1]} is not set and has no default")
            return str(value)

        return _HOST_VARIABLE.sub(replacement, entry)

    def mebibytes(self, field: str, deprecated: str) -> int | None:
        """A size in MiB, from the field or from its deprecated spelling with a unit."""
        if self.values.get(field) is not None:
            return math.ceil(self.number(field) or 0)
        size = self.text(deprecated)
        if size is None:
            return None
        match = _SIZE.match(size)
        if match is None:
            return self.complain(deprecated, size, "a size such as 512M or 4G")
        # Rounded up: a limit of a few KiB must not become a limit of 0.
        return math.ceil(float(match[1]) * _MIB_PER_UNIT[match[2].upper()])

    def warn_of_unknown(self, known: set[str]) -> None:
        """Say which fields are not known: probably misspelt, so without effect."""
        for field in sorted(self.values.keys() - known):
            log.warning("%s: [%s] %s is not known and is ignored", self.file, self.name, field)

    def complain(self, field: str, value: object, allowed: str) -> Any:
        """Refuse a value.

        Raises:
            BrokenTaskError: Always.
        """
        where = f"[{self.name}] {field}" if self.name else field
        raise BrokenTaskError(self.file, f"= {value!r} is not {allowed}", field=where)

    def table(self, field: str) -> Table:
        """A table in this one; empty if it is not given."""
        value = self.values.get(field)
        if value is not None and not isinstance(value, dict):
            self.complain(field, value, "a table")
        name = f"{self.name}.{field}" if self.name else field
        return Table(file=self.file, name=name, values=value or {})

    def strings(self, field: str) -> tuple[str, ...]:
        """A list of non-empty strings, each once."""
        value = self.values.get(field) or []
        if not isinstance(value, list) or not all(isinstance(tag, str) and tag for tag in value):
            self.complain(field, value, "a list of non-empty strings")
        return tuple(dict.fromkeys(value))

    def user(self, field: str) -> str | None:
        """A user's name or id."""
        value = self.values.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text(field)

    def choice(self, field: str, allowed: tuple[str, ...]) -> str | None:
        """One of several words."""
        value = self.text(field)
        if value is not None and value not in allowed:
            self.complain(field, value, f"one of {', '.join(allowed)}")
        return value


def read_text(file: Path) -> str:
    """A file's text.

    Raises:
        BrokenTaskError: It is missing, or no UTF-8 text.
    """
    if not file.is_file():
        raise BrokenTaskError(file, "file is missing")
    try:
        return file.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise BrokenTaskError(file, f"cannot be read: {error}") from error


def instruction_text(file: Path, text: str) -> str:
    """An instruction without its leading canary lines.

    Raises:
        BrokenTaskError: Nothing is left.
    """
    instruction = _CANARY.sub("", text).strip()
    if not instruction:
        raise BrokenTaskError(file, "says nothing")
    return instruction


def environment_spec(
    table: Table, context: Path, *, agent: Table, verifier: Table, unsupported: str = ""
) -> EnvironmentSpec:
    """What the `environment` table of Harbor and of BenchFlow asks for.

    Args:
        table: The table.
        context: The folder with the Dockerfile.
        agent: What the task says of its agent.
        verifier: What the task says of its tests.
        unsupported: What else the task asks for and nothing here can give.
    """
    skills = context / "skills"
    network = _network(table)
    if network is None and table.values.get("allow_internet") is not None:
        network = table.flag("allow_internet")
    agents, tests = _network(agent), _network(verifier)
    agents, tests = (network if own is None else own for own in (agents, tests))
    if (table.text("os") or "linux").lower() != "linux":
        unsupported = unsupported or f"asks for the operating system {table.values['os']}"
    for field in ("mcp_servers", "tpu"):
        if table.values.get(field):
            unsupported = unsupported or f"asks for {field}"
    return EnvironmentSpec(
        context=context if context.is_dir() else None,
        docker_image=table.text("docker_image"),
        workdir=table.text("workdir"),
        env=table.env("env"),
        cpus=table.number("cpus"),
        memory_mb=table.mebibytes("memory_mb", "memory"),
        storage_mb=table.mebibytes("storage_mb", "storage"),
        gpus=table.count("gpus"),
        network=agents,
        tests_network=None if tests in (None, agents) else tests,
        build_timeout_s=table.number("build_timeout_sec") or 600.0,
        user=agent.user("user"),
        skills=skills if any(skills.glob("*/SKILL.md")) else None,
        skills_dir=table.text("skills_dir"),
        healthcheck=healthcheck(table.table("healthcheck")),
        unsupported=unsupported,
    )


def _network(table: Table) -> bool | None:
    """Whether a table gives a network; `None` if it does not say."""
    mode = table.choice("network_mode", _NETWORK_MODES)
    return None if mode is None else mode != "no-network"


def healthcheck(table: Table) -> Healthcheck | None:
    """The health check in a table; `None` if it is empty."""
    if not table.values:
        return None
    command = table.text("command")
    if not command:
        table.complain("command", command, "a command")
    start = table.values.get("start_period_sec", 0.0)
    if not isinstance(start, int | float) or isinstance(start, bool) or not 0 <= start < math.inf:
        table.complain("start_period_sec", start, "a number of at least 0")
    return Healthcheck(
        command=str(command),
        interval_s=table.number("interval_sec") or 5.0,
        timeout_s=table.number("timeout_sec") or 30.0,
        start_period_s=float(start),
        start_interval_s=table.number("start_interval_sec") or 5.0,
        retries=table.count("retries") if "retries" in table.values else 3,
    )
