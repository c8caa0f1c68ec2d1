"""Terminal-Bench 1 task folders: `task.yaml`, `Dockerfile`, `run-tests.sh` and `tests/`.

The format's own harness runs `run-tests.sh` and reads pytest's summary from its output. Here
`legacy_tests/test.sh` does the same in the sandbox: the reward is 1 if every test in the summary
passed and there is at least one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from arise.environments.dockerfile import compose_file
from arise.tasks.fields import BrokenTaskError, Table, instruction_text, read_text
from arise.types import EnvironmentSpec, Task

MANIFEST = "task.yaml"
_PARSERS = ("pytest",)
_AGENT_TIMEOUT_S = 360.0
_TEST_TIMEOUT_S = 60.0
_OWN_TESTS = Path(__file__).parent / "legacy_tests"
_COMPOSE_KEYS = set("build image container_name command environment volumes".split())
# Beside the Dockerfile, but nothing that an agent may see.
_EXCLUDE = (
    MANIFEST,
    "run-tests.sh",
    "solution.sh",
    "solution.yaml",
    "tests",
    "docker-compose.yaml",
)


def is_legacy(manifest: Path) -> bool:
    """Whether a `task.yaml` is a task."""
    return (manifest.parent / "run-tests.sh").is_file() or (manifest.parent / "tests").is_dir()


def load_legacy(folder: Path, *, task_id: str) -> Task:
    """Read one Terminal-Bench 1 task folder.

    Raises:
        BrokenTaskError: A file is missing or a field has the wrong type.
    """
    manifest = folder / MANIFEST
    try:
        values = yaml.safe_load(read_text(manifest)) or {}
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise BrokenTaskError(manifest, f"is not valid YAML: {reason}") from error
    if not isinstance(values, dict):
        raise BrokenTaskError(manifest, f"is no table: {values!r:.100}")
    root = Table(file=manifest, name="", values=values)
    for needed in ("run-tests.sh", "Dockerfile"):
        if not (folder / needed).is_file():
            raise BrokenTaskError(folder / needed, "file is missing")
    tests = folder / "tests"
    test_timeout_s = root.number("max_test_timeout_sec") or _TEST_TIMEOUT_S
    return Task(
        id=task_id,
        instruction=instruction_text(manifest, root.text("instruction") or ""),
        path=folder,
        tests=_OWN_TESTS,
        extra_tests=(*((tests,) if tests.is_dir() else ()), folder / "run-tests.sh"),
        solution=folder if (folder / "solution.sh").is_file() else None,
        environment=EnvironmentSpec(
            context=folder,
            exclude=_EXCLUDE,
            unsupported=_unsupported(folder, root),
            # The format has no switch: its harness always gives a network, and most tests fetch
            # their tools by it.
            network=True,
        ),
        tags=root.strings("tags"),
        domain=root.text("category"),
        agent_timeout_s=root.number("max_agent_timeout_sec") or _AGENT_TIMEOUT_S,
        # The wrapper ends the tests itself: a test that hangs is a failed one.
        verifier_timeout_s=test_timeout_s + 60.0,
        verifier_env={"TEST_DIR": "/tests", "ARISE_TEST_TIMEOUT_S": f"{test_timeout_s:g}"},
    )


def _unsupported(folder: Path, root: Table) -> str:
    parser = root.text("parser_name") or "pytest"
    if parser not in _PARSERS:
        return f"asks for parser_name = {parser}; known: {', '.join(_PARSERS)}"
    if root.flag("run_tests_in_same_shell"):
        return "asks for run_tests_in_same_shell: the agent's shell is dead when the tests run"
    name = compose_file(folder)
    return _unsupported_compose(folder / name) if name else ""


def _unsupported_compose(file: Path) -> str:
    """Why a compose file says more than that the Dockerfile beside it is the machine."""
    try:
        content: Any = yaml.safe_load(read_text(file)) or {}
    except yaml.YAMLError as error:
        raise BrokenTaskError(file, "is not valid YAML") from error
    services = content.get("services") if isinstance(content, dict) else None
    if not isinstance(services, dict) or len(services) != 1:
        return f"needs docker-compose: {file.name} has not one service"
    (service,) = services.values()
    more = sorted(set(service or {}) - _COMPOSE_KEYS)
    if more or set(content) - {"services", "version"}:
        return f"needs docker-compose: {file.name} has {', '.join(more) or 'more than services'}"
    return ""
