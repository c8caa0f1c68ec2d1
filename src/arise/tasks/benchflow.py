"""BenchFlow task folders: `task.md` with YAML front matter, as in SkillsBench.

A task holds `task.md` (front matter, then the prompt, often below `## prompt`), `environment/`,
`verifier/test.sh` and, if there is a reference solution, `oracle/solve.sh`. Where these folders
are missing, `tests/` and `solution/` take their place.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from arise.tasks.fields import (
    BrokenTaskError,
    Table,
    environment_spec,
    instruction_text,
    read_text,
)
from arise.types import Task

MANIFEST = "task.md"
_SECTION = re.compile(
    r"^##[ \t]+(prompt|role:[\w.-]+|scene:[\w.-]+|user-persona)[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_TESTS_PATH = "/tests"


def is_benchflow(manifest: Path) -> bool:
    """Whether a `task.md` is a task: it begins with front matter."""
    try:
        with manifest.open(encoding="utf-8-sig") as file:
            return file.readline(16).strip() == "---"
    except (OSError, UnicodeDecodeError):
        return False


def load_benchflow(folder: Path, *, task_id: str) -> Task:
    """Read one BenchFlow task folder.

    Raises:
        BrokenTaskError: A file is missing or a field has the wrong type.
    """
    manifest = folder / MANIFEST
    root, body = _split(manifest)
    metadata, agent, verifier = map(root.table, ("metadata", "agent", "verifier"))
    environment = root.table("sandbox" if "sandbox" in root.values else "environment")
    tests = folder / "verifier" if (folder / "verifier").is_dir() else folder / "tests"
    if not (tests / "test.sh").is_file():
        raise BrokenTaskError(tests / "test.sh", "file is missing")
    solution = folder / "oracle" if (folder / "oracle").is_dir() else folder / "solution"
    return Task(
        id=task_id,
        instruction=instruction_text(manifest, _prompt(body)),
        path=folder,
        tests=tests,
        solution=solution if solution.is_dir() else None,
        solution_env=root.table("oracle").env("env"),
        environment=environment_spec(
            environment,
            folder / "environment",
            agent=agent,
            verifier=verifier,
            unsupported=_unsupported(root, body, verifier),
        ),
        tags=metadata.strings("tags"),
        domain=metadata.text("domain") or metadata.text("category"),
        agent_timeout_s=agent.number("timeout_sec"),
        verifier_timeout_s=verifier.number("timeout_sec") or 600.0,
        verifier_env={"BENCHFLOW_VERIFIER_DIR": _TESTS_PATH, **verifier.env("env")},
        verifier_user=verifier.user("user"),
    )


def _split(manifest: Path) -> tuple[Table, str]:
    """Front matter and body."""
    lines = read_text(manifest).replace("\r\n", "\n").split("\n")
    ends = [index for index, line in enumerate(lines) if line.strip() == "---"]
    if len(ends) < 2 or ends[0] != 0:
        raise BrokenTaskError(manifest, "does not begin with front matter between two lines ---")
    try:
        values = yaml.safe_load("\n".join(lines[1 : ends[1]])) or {}
    except yaml.YAMLError as error:
        raise BrokenTaskError(
            manifest, f"is not valid YAML: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(values, dict):
        raise BrokenTaskError(manifest, f"has front matter that is no table: {values!r:.100}")
    # `verifier: path` and `oracle: path` are short for the folders' usual places.
    values = {
        key: value
        for key, value in values.items()
        if not (key in ("verifier", "oracle") and isinstance(value, str))
    }
    return Table(file=manifest, name="", values=values), "\n".join(lines[ends[1] + 1 :])


def _prompt(body: str) -> str:
    """The section `## prompt`; without one, what comes before any other section."""
    sections = list(_SECTION.finditer(body))
    ends = [*(section.start() for section in sections[1:]), len(body)]
    for section, end in zip(sections, ends, strict=False):
        if section[1].lower() == "prompt":
            return body[section.end() : end]
    return body[: sections[0].start()] if sections else body


def _unsupported(root: Table, body: str, verifier: Table) -> str:
    """What needs more than one agent and a test script."""
    kind = verifier.text("type")
    if kind not in (None, "test-script"):
        return f"asks for verifier.type = {kind}"
    for field in ("steps", "setup_commands", "scenes"):
        if root.values.get(field):
            return f"asks for {field}"
    for section in _SECTION.finditer(body):
        if section[1].lower() != "prompt":
            return f"has a section {section[1]}: more than one agent"
    return ""
