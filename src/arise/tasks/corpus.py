"""Loads corpora: every task below a folder, in any of the known formats.

A corpus is a folder (or several) that contains task folders at any depth: Harbor (`task.toml`),
BenchFlow (`task.md`) and Terminal-Bench 1 (`task.yaml`). A task's id is its path below the corpus
folder, so it is stable between runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arise.errors import ConfigError
from arise.tasks import benchflow, harbor, legacy
from arise.tasks.fields import CORPUS_KEY, BrokenTaskError
from arise.tasks.prior_context import read_prior_context
from arise.types import Task

__all__ = [
    "BrokenTaskError",
    "CorpusScan",
    "has_task",
    "load_corpus",
    "load_task",
    "scan_corpus",
]

ON_BROKEN = ("fail", "skip")
_NEEDS = (
    "a task is a folder with task.toml, instruction.md and tests/test.sh (Harbor), task.md "
    "(BenchFlow) or task.yaml (Terminal-Bench 1)"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """One task format: its manifest, whether a file of that name is one, and its loader."""

    name: str
    manifest: str
    is_task: Callable[[Path], bool]
    load: Callable[..., Task]


# In this order where a folder has several manifests: newer tools ship older ones beside theirs.
_FORMATS = (
    _Format(
        name="Harbor",
        manifest=harbor.MANIFEST,
        is_task=lambda _: True,
        load=harbor.load_harbor,
    ),
    _Format(
        name="BenchFlow",
        manifest=benchflow.MANIFEST,
        is_task=benchflow.is_benchflow,
        load=benchflow.load_benchflow,
    ),
    _Format(
        name="Terminal-Bench 1",
        manifest=legacy.MANIFEST,
        is_task=legacy.is_legacy,
        load=legacy.load_legacy,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusScan:
    """What a corpus holds.

    Attributes:
        tasks: The tasks, sorted by id.
        broken: What is wrong with the others, by the id they would have, sorted by it.
    """

    tasks: tuple[Task, ...]
    broken: dict[str, BrokenTaskError]


def load_corpus(
    corpus: str | Path | Sequence[str | Path], *, on_broken: str = "fail"
) -> list[Task]:
    """All tasks below the folders of `corpus`, sorted by id.

    Args:
        corpus: One folder or several. A folder may itself be a task.
        on_broken: `fail` raises for a task that cannot be read, `skip` logs it and goes on.

    Returns:
        The tasks; with several folders an id starts with the folder's name.

    Raises:
        ConfigError: A folder is missing or holds no task, or two tasks have one id.
        BrokenTaskError: A task folder cannot be read, and it is the only one of its kind.
    """
    if on_broken not in ON_BROKEN:
        raise ConfigError(f"datamodule.on_broken = {on_broken!r} is not one of fail, skip")
    scan = scan_corpus(corpus)
    if scan.broken and on_broken == "fail":
        raise _all_in_one(list(scan.broken.values()), num_good=len(scan.tasks))
    for task_id, error in scan.broken.items():
        log.warning("task %s is left out: %s", task_id, error)
    if not scan.tasks:
        raise ConfigError(
            f"{CORPUS_KEY}: none of {len(scan.broken)} tasks can be read; the first one because: "
            f"{next(iter(scan.broken.values()))}"
        )
    return list(scan.tasks)


def scan_corpus(corpus: str | Path | Sequence[str | Path]) -> CorpusScan:
    """Read every task below the folders of `corpus`, and keep what is wrong with the broken ones.

    Raises:
        ConfigError: A folder is missing or holds no task, or two tasks have one id.
    """
    folders = [Path(corpus)] if isinstance(corpus, str | Path) else [Path(c) for c in corpus]
    if not folders:
        raise ConfigError(f"{CORPUS_KEY} is an empty list; give one folder of tasks or several")
    places: dict[str, Path] = {}
    tasks: dict[str, Task] = {}
    broken: dict[str, BrokenTaskError] = {}
    for corpus_folder in folders:
        prefix = f"{corpus_folder.resolve().name}/" if len(folders) > 1 else ""
        for folder, below in _task_folders(corpus_folder):
            task_id = prefix + below
            if task_id in places:
                raise ConfigError(
                    f"{CORPUS_KEY}: task id {task_id!r} stands for both {places[task_id]} "
                    f"and {folder}; ids must be unique"
                )
            places[task_id] = folder
            try:
                tasks[task_id] = load_task(folder, task_id=task_id)
            except BrokenTaskError as error:
                broken[task_id] = error
    return CorpusScan(
        tasks=tuple(tasks[task_id] for task_id in sorted(tasks)),
        broken={task_id: broken[task_id] for task_id in sorted(broken)},
    )


def has_task(folder: Path) -> bool:
    """Whether there is anything below a folder that looks like a task."""
    return next(_manifests(folder), None) is not None


def load_task(folder: Path, *, task_id: str) -> Task:
    """Read one task folder, in whatever format it is.

    Raises:
        BrokenTaskError: A file is missing or a field has the wrong type.
    """
    for format_ in _FORMATS:
        manifest = folder / format_.manifest
        if manifest.is_file() and format_.is_task(manifest):
            task = format_.load(folder, task_id=task_id)
            prior = read_prior_context(folder)
            return replace(task, prior=prior) if prior else task
    raise BrokenTaskError(folder, f"is no task; {_NEEDS}")


def _task_folders(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every task folder below `folder`, and its path from there."""
    if not folder.is_dir():
        raise ConfigError(f"{CORPUS_KEY}: folder {str(folder)!r} does not exist")
    found = {manifest.parent for manifest in _manifests(folder)}
    if not found:
        raise ConfigError(f"{CORPUS_KEY}: no task found below {str(folder)!r}; {_NEEDS}")
    loaded: set[Path] = set()
    for path in sorted(found, key=lambda path: (len(path.parts), path)):
        if loaded.isdisjoint(path.parents):  # else it is a file of the task above it
            loaded.add(path)
            below = path.relative_to(folder).as_posix()
            yield path, folder.resolve().name if below == "." else below


def _manifests(folder: Path) -> Iterator[Path]:
    for format_ in _FORMATS:
        for manifest in folder.rglob(format_.manifest):
            if manifest.is_file() and format_.is_task(manifest):
                yield manifest


def _all_in_one(errors: Iterable[BrokenTaskError], *, num_good: int) -> ConfigError:
    """One error for all broken tasks; the first one as it is if it is alone."""
    errors = list(errors)
    if len(errors) == 1:
        return errors[0]
    lines = "\n".join(f"- {error}" for error in errors)
    return ConfigError(
        f"{CORPUS_KEY}: {len(errors)} of {len(errors) + num_good} tasks are broken "
        f"(datamodule.on_broken=skip leaves them out):\n{lines}"
    )
