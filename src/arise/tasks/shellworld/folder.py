"""Writes a task as a Harbor folder, and grades a working directory the way its tests do."""

from __future__ import annotations

import os
from pathlib import Path

from arise.tasks.shellworld.spec import TaskSpec

_DOCKERFILE = "FROM debian:bookworm-slim\nENV LC_ALL=C\nWORKDIR /app\nCOPY files/ ./\n"

_TOML = """schema_version = "1.0"

[metadata]
family = "{family}"
domain = "{domain}"
tags = [{tags}]

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 10.0
"""


def write_files(files: dict[str, str] | None, folder: Path) -> None:
    """Write path to content below `folder`."""
    made: set[str] = set()
    for name, content in (files or {}).items():
        path = f"{folder}/{name}"
        parent = os.path.dirname(path)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(content)


def test_script(spec: TaskSpec) -> str:
    """`tests/test.sh`: 1 if every expected file is there to the byte and no unwanted one is."""
    checks = [f"cmp -s {name} /tests/expected/{name} || reward=0" for name in spec.draft.expected]
    checks += [f"[ ! -e {name} ] || reward=0" for name in spec.draft.gone]
    return "\n".join(
        ("#!/bin/sh", "reward=1", *checks, "echo $reward > /logs/verifier/reward.txt", "")
    )


def write(spec: TaskSpec, folder: Path) -> None:
    """Write `spec` as a Harbor task to `folder`."""
    tags = ", ".join(f'"{tag}"' for tag in spec.tags)
    files = {
        "instruction.md": spec.instruction + "\n",
        "task.toml": _TOML.format(family=spec.family, domain=spec.domain, tags=tags),
        "environment/Dockerfile": _DOCKERFILE,
        "tests/test.sh": test_script(spec),
        "solution/solve.sh": "\n".join(("#!/bin/sh", *spec.plan.solution(), "")),
    }
    files |= {f"environment/files/{name}": text for name, text in spec.draft.files.items()}
    files |= {f"tests/expected/{name}": text for name, text in spec.draft.expected.items()}
    write_files(files, folder)


def grade(spec: TaskSpec, folder: Path) -> float:
    """The reward that `tests/test.sh` would write for the working directory `folder`."""
    for name, content in spec.draft.expected.items():
        try:
            with open(f"{folder}/{name}", "rb") as stream:
                if stream.read() != content.encode():
                    return 0.0
        except OSError:
            return 0.0
    return 0.0 if any(os.path.lexists(f"{folder}/{name}") for name in spec.draft.gone) else 1.0
