"""Imports point down only, and heavy packages stay where they belong."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "arise"

# A package may import itself and those on lower levels.
LEVELS = [
    {
        "types",
        "errors",
        "aio",
        "config_limits",
        "rollout_sizes",
        "parallel_sizes",
        "engine_placement",
    },
    {
        "algorithms",
        "llm",
        "environments",
        "inference",
        "config_engines",
        "config_harness",
        "config_evaluate",
    },
    {"rubrics", "config"},
    {"curriculum", "tasks"},
    {"agents", "runs"},
    {"modules", "evaluation"},
    {"datamodules", "callbacks"},
    {"validation", "assembly", "assembly_rollouts", "terminal", "planning"},
    {"dry_run"},
    {"app", "cli", "evaluate", "study"},
    {"reference"},
]

ONLY_IN = {
    "lightning": {"modules", "datamodules", "callbacks", "app", "terminal"},
    "openai": {"llm"},
    "docker": {"environments"},
    "vllm": {"inference"},
    "hydra": {"config", "cli", "app", "assembly", "study"},
}


def part_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def level_of(part: str) -> int:
    return next(level for level, parts in enumerate(LEVELS) if part in parts)


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem != "__init__"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    for name in imports_of(path):
        root, _, rest = name.partition(".")
        if root == "arise" and rest:
            other = rest.partition(".")[0]
            allowed = other == part or level_of(other) < level_of(part)
            assert allowed, f"{path.name} ({part}) must not import arise.{rest}"
        elif root in ONLY_IN:
            assert part in ONLY_IN[root], f"{path.name} ({part}) must not import {root}"


def test_every_part_has_a_level() -> None:
    parts = {part_of(path) for path in FILES}
    assert parts == set().union(*LEVELS) & parts


def test_types_import_the_standard_library_only() -> None:
    names = {name for path in (SOURCE / "types").glob("*.py") for name in imports_of(path)}
    roots = {name.partition(".")[0] for name in names if not name.startswith("arise.types")}
    assert names
    assert roots <= set(sys.stdlib_module_names)
