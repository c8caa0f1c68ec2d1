"""Loads corpora of Harbor-format task folders.

A task folder holds `instruction.md`, `task.toml`, `environment/`, `tests/test.sh` and, if there
is a reference solution, `solution/`. A corpus is a folder (or several) that contains task folders
at any depth. A task's id is its path below the corpus folder, so it is stable between runs.
"""

from __future__ import annotations

import logging
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.types import EnvironmentSpec, Task

_CANARY = re.compile(r"\A(?:[ \t]*(?:<!--.*?canary.*?-->|#.*canary.*)[ \t]*\r?\n)+", re.IGNORECASE)
_HOST_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*$", re.IGNORECASE)
_MIB_PER_UNIT = {"": 1 / 2**20, "K": 1 / 2**10, "M": 1, "G": 2**10, "T": 2**20}
_KEY = "datamodule.corpus"

# What the format knows; anything else in these tables is probably a misspelling.
_FIELDS = {
    "agent": {"timeout_sec", "user"},
    "verifier": {"timeout_sec", "env", "user", "environment_mode"},
    "environment": set(
        "build_timeout_sec docker_image workdir skills_dir env cpus memory_mb storage_mb gpus "
        "network_mode healthcheck memory storage allow_internet".split()
    ),
}

log = logging.getLogger(__name__)


class BrokenTaskError(ConfigError):
    """A task folder that cannot be used; says file, field and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
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
        value = self.values.get(field, 0)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        return self.complain(field, value, "a whole number of at least 0")

    def flag(self, field: str) -> bool:
        value = self.values.get(field, False)
        return value if isinstance(value, bool) else self.complain(field, value, "true or false")

    def text(self, field: str) -> str | None:
        value = self.values.get(field)
        if value is None or isinstance(value, str):
            return value
        return self.complain(field, value, "a string")

    def env(self, field: str) -> dict[str, str]:
        value = self.values.get(field, {})
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
        for field in sorted(self.values.keys() - known):
            log.warning("%s: [%s] %s is not known and is ignored", self.file, self.name, field)

    def complain(self, field: str, value: object, allowed: str) -> Any:
        raise BrokenTaskError(
            f"{self.file}: [{self.name}] {field} = {value!r} is not {allowed} ({_KEY})"
        )


def load_corpus(corpus: str | Path | Sequence[str | Path]) -> list[Task]:
    """All tasks below the folders of `corpus`, sorted by id.

    Args:
        corpus: One folder or several. A folder may itself be a task.

    Returns:
        The tasks; with several folders an id starts with the folder's name.

    Raises:
        ConfigError: A folder is missing or holds no task, or two tasks have one id.
        BrokenTaskError: A task folder cannot be read.
    """
    folders = [Path(corpus)] if isinstance(corpus, str | Path) else [Path(c) for c in corpus]
    if not folders:
        raise ConfigError(f"{_KEY} is an empty list; give one folder of tasks or several")
    tasks: dict[str, Task] = {}
    for folder in folders:
        prefix = f"{folder.resolve().name}/" if len(folders) > 1 else ""
        for task in _load_folder(folder, prefix):
            if task.id in tasks:
                raise ConfigError(
                    f"{_KEY}: task id {task.id!r} stands for both {tasks[task.id].path} "
                    f"and {task.path}; ids must be unique"
                )
            tasks[task.id] = task
    return [tasks[task_id] for task_id in sorted(tasks)]


def _load_folder(folder: Path, prefix: str) -> Iterable[Task]:
    if not folder.is_dir():
        raise ConfigError(f"{_KEY}: folder {str(folder)!r} does not exist")
    manifests = sorted(folder.rglob("task.toml"))
    if not manifests:
        raise ConfigError(
            f"{_KEY}: no task found below {str(folder)!r}; a task is a folder with task.toml, "
            "instruction.md and tests/test.sh"
        )
    loaded: set[Path] = set()
    for manifest in sorted(manifests, key=lambda manifest: len(manifest.parts)):
        if loaded.isdisjoint(manifest.parents):  # else it is a file of the task above it
            loaded.add(manifest.parent)
            below = manifest.parent.relative_to(folder).as_posix()
            task_id = folder.resolve().name if below == "." else below
            yield load_task(manifest.parent, task_id=prefix + task_id)


def load_task(folder: Path, *, task_id: str) -> Task:
    """Read one Harbor task folder (schema 1.0 to 1.4, single step).

    Raises:
        BrokenTaskError: A file is missing or a field has the wrong type.
    """
    manifest = folder / "task.toml"
    instruction_file, tests = folder / "instruction.md", folder / "tests"
    for needed in (manifest, instruction_file, tests / "test.sh"):
        if not needed.is_file():
            raise BrokenTaskError(f"{needed}: file is missing ({_KEY})")
    try:
        tables = tomllib.loads(_read(manifest))
    except tomllib.TOMLDecodeError as error:
        raise BrokenTaskError(f"{manifest}: is not valid TOML: {error} ({_KEY})") from error
    instruction = _CANARY.sub("", _read(instruction_file)).strip()
    if not instruction:
        raise BrokenTaskError(f"{instruction_file}: says nothing ({_KEY})")
    metadata, agent, verifier, environment = (
        _table(manifest, tables, name) for name in ("metadata", "agent", "verifier", "environment")
    )
    for table in (agent, verifier, environment):
        table.warn_of_unknown(_FIELDS[table.name])
    solution = folder / "solution"
    return Task(
        id=task_id,
        instruction=instruction,
        path=folder,
        tests=tests,
        solution=solution if solution.is_dir() else None,
        environment=_environment(environment, folder / "environment"),
        tags=_tags(metadata),
        domain=metadata.text("domain") or metadata.text("category"),
        agent_timeout_s=agent.number("timeout_sec"),
        verifier_timeout_s=verifier.number("timeout_sec") or 600.0,
        verifier_env=verifier.env("env"),
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise BrokenTaskError(f"{file}: cannot be read: {error} ({_KEY})") from error


def _table(manifest: Path, tables: Mapping[str, Any], name: str) -> _Table:
    values = tables.get(name, {})
    if not isinstance(values, dict):
        raise BrokenTaskError(f"{manifest}: {name} = {values!r} is not a table ({_KEY})")
    return _Table(file=manifest, name=name, values=values)


def _tags(metadata: _Table) -> tuple[str, ...]:
    value = metadata.values.get("tags", [])
    if not isinstance(value, list) or not all(isinstance(tag, str) and tag for tag in value):
        metadata.complain("tags", value, "a list of non-empty strings")
    return tuple(dict.fromkeys(value))


def _environment(table: _Table, context: Path) -> EnvironmentSpec:
    network_mode = table.text("network_mode")
    if network_mode not in (None, "public", "no-network", "allowlist"):
        table.complain("network_mode", network_mode, "one of public, no-network, allowlist")
    network = network_mode in ("public", "allowlist") or (
        network_mode is None and table.flag("allow_internet")
    )
    return EnvironmentSpec(
        context=context if context.is_dir() else None,
        docker_image=table.text("docker_image"),
        workdir=table.text("workdir"),
        env=table.env("env"),
        cpus=table.number("cpus"),
        memory_mb=table.mebibytes("memory_mb", "memory"),
        storage_mb=table.mebibytes("storage_mb", "storage"),
        gpus=table.count("gpus"),
        network=network,
        build_timeout_s=table.number("build_timeout_sec") or 600.0,
    )
