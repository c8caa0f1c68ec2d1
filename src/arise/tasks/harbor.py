"""Harbor task folders, schema 1.0 to 1.4, in one step or several.

A task holds `task.toml`, `instruction.md`, `environment/`, `tests/test.sh` and, if there is a
reference solution, `solution/`. With `[[steps]]` in the manifest, instruction, tests and solution
are in `steps/<name>/`, with an optional `workdir/` that is put into the working directory before
the step; `tests/` then holds what the tests of all steps share.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arise.tasks.fields import (
    BrokenTaskError,
    Table,
    environment_spec,
    healthcheck,
    instruction_text,
    read_text,
)
from arise.types import Step, Task

MANIFEST = "task.toml"
_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_REWARD_STRATEGIES = ("mean", "final")

# What the format knows; anything else in these tables is probably a misspelling.
_FIELDS: Mapping[str, set[str]] = {
    "agent": {"timeout_sec", "user", "network_mode", "allowed_hosts"},
    "verifier": set(
        "timeout_sec env user environment_mode environment collect network_mode "
        "allowed_hosts".split()
    ),
    "environment": set(
        "build_timeout_sec docker_image workdir skills_dir env cpus memory_mb storage_mb gpus "
        "gpu_types network_mode allowed_hosts healthcheck memory storage allow_internet os tpu "
        "mcp_servers".split()
    ),
}


def load_harbor(folder: Path, *, task_id: str) -> Task:
    """Read one Harbor task folder.

    Raises:
        BrokenTaskError: A file is missing or a field has the wrong type.
    """
    manifest = folder / MANIFEST
    root = _read_manifest(manifest)
    _check_version(root)
    metadata, agent, verifier, environment = map(
        root.table, ("metadata", "agent", "verifier", "environment")
    )
    for table in (agent, verifier, environment):
        table.warn_of_unknown(set(_FIELDS[table.name]))
    steps = _steps(folder, root, agent, verifier)
    if steps:
        instruction = "\n\n".join(step.instruction for step in steps)
    else:
        _need_tests((folder / "tests",))
        file = folder / "instruction.md"
        instruction = instruction_text(file, read_text(file))
    solution = folder / "solution"
    return Task(
        id=task_id,
        instruction=instruction,
        path=folder,
        tests=steps[-1].tests[-1] if steps else folder / "tests",
        solution=solution if solution.is_dir() and not steps else None,
        solution_env=root.table("solution").env("env"),
        environment=environment_spec(
            environment,
            folder / "environment",
            agent=agent,
            verifier=verifier,
            unsupported=_unsupported(verifier) or _unsupported_steps(root, agent, verifier),
        ),
        tags=metadata.strings("tags"),
        domain=metadata.text("domain") or metadata.text("category"),
        agent_timeout_s=agent.number("timeout_sec"),
        verifier_timeout_s=verifier.number("timeout_sec") or 600.0,
        verifier_env=verifier.env("env"),
        verifier_user=verifier.user("user"),
        is_graded_apart=verifier.choice("environment_mode", ("shared", "separate")) == "separate",
        artifacts=tuple(
            dict.fromkeys(path for table in (root, *_tables(root)) for path in _artifacts(table))
        ),
        steps=steps,
        step_reward=root.choice("multi_step_reward_strategy", _REWARD_STRATEGIES) or "mean",
    )


def _read_manifest(manifest: Path) -> Table:
    try:
        values = tomllib.loads(read_text(manifest))
    except tomllib.TOMLDecodeError as error:
        raise BrokenTaskError(manifest, f"is not valid TOML: {error}") from error
    return Table(file=manifest, name="", values=values)


def _check_version(root: Table) -> None:
    field = "schema_version" if "schema_version" in root.values else "version"
    version = root.values.get(field)
    if version is not None and str(version) not in _VERSIONS:
        root.complain(field, version, f"one of {', '.join(_VERSIONS)}")


def _unsupported(verifier: Table) -> str:
    """What only Harbor's own verifier containers can give."""
    for field in ("environment", "collect"):
        if verifier.values.get(field):
            return f"asks for [verifier] {field}: its own verifier containers"
    return ""


def _unsupported_steps(root: Table, agent: Table, verifier: Table) -> str:
    """What differs between steps and must not: all of them share one sandbox."""
    for step in _tables(root):
        for own, common, fields in (
            (step.table("agent"), agent, ("user", "network_mode")),
            (step.table("verifier"), verifier, ("user", "network_mode", "environment_mode")),
        ):
            for field in fields:
                if own.values.get(field) not in (None, common.values.get(field)):
                    return f"asks for another [{common.name}] {field} in one of its steps"
        reason = _unsupported(step.table("verifier"))
        if reason:
            return reason
    return ""


def _need_tests(folders: tuple[Path, ...]) -> None:
    if not any((folder / "test.sh").is_file() for folder in folders):
        raise BrokenTaskError(folders[-1] / "test.sh", "file is missing")


def _artifacts(root: Table) -> tuple[str, ...]:
    value = root.values.get("artifacts") or []
    if not isinstance(value, list):
        root.complain("artifacts", value, "a list")
    sources = [entry.get("source") if isinstance(entry, dict) else entry for entry in value]
    if not all(isinstance(source, str) and source for source in sources):
        root.complain("artifacts", value, "a list of paths, or of tables with a source")
    return tuple(map(str, sources))


def _tables(root: Table) -> list[Table]:
    """The tables `[[steps]]`."""
    value = root.values.get("steps") or []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        root.complain("steps", value, "a list of tables")
    return [
        Table(file=root.file, name=f"steps.{index}", values=entry)
        for index, entry in enumerate(value)
    ]


def _steps(folder: Path, root: Table, agent: Table, verifier: Table) -> tuple[Step, ...]:
    steps = tuple(_step(folder, table, agent, verifier) for table in _tables(root))
    names = [step.name.casefold() for step in steps]
    if len(set(names)) < len(names):
        root.complain("steps", [step.name for step in steps], "a list of unique names")
    return steps


def _step(folder: Path, table: Table, agent: Table, verifier: Table) -> Step:
    name = table.text("name")
    if not name or Path(name).name != name or name in (".", ".."):
        table.complain("name", name, "the name of a folder below steps/")
    step_folder = folder / "steps" / str(name)
    own_agent, own_verifier = table.table("agent"), table.table("verifier")
    for own, kind in ((own_agent, "agent"), (own_verifier, "verifier")):
        own.warn_of_unknown(set(_FIELDS[kind]))
    tests = tuple(
        tests for tests in (folder / "tests", step_folder / "tests") if tests.is_dir()
    ) or (step_folder / "tests",)
    _need_tests(tests)
    file = step_folder / "instruction.md"
    workdir, solution = step_folder / "workdir", step_folder / "solution"
    return Step(
        name=str(name),
        instruction=instruction_text(file, read_text(file)),
        tests=tests,
        workdir=workdir if workdir.is_dir() else None,
        solution=solution if solution.is_dir() else None,
        min_reward=_min_reward(table),
        agent_timeout_s=own_agent.number("timeout_sec") or agent.number("timeout_sec"),
        verifier_timeout_s=own_verifier.number("timeout_sec")
        or verifier.number("timeout_sec")
        or 600.0,
        verifier_env={**verifier.env("env"), **own_verifier.env("env")},
        healthcheck=healthcheck(table.table("healthcheck")),
    )


def _min_reward(table: Table) -> float | None:
    value: Any = table.values.get("min_reward")
    if isinstance(value, dict) and set(value) == {"reward"}:
        value = value["reward"]
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return table.complain("min_reward", value, "a number, or a table with the key reward")
