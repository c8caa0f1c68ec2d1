"""`tags.jsonl`: a corpus's task types, one task a line; annotation writes it, training reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.llm.text import clean_text
from arise.tasks.annotation import TaskTags, task_hash
from arise.types import Task

KEY = "datamodule.tags"

log = logging.getLogger(__name__)

Record = dict[str, Any]


def to_record(tags: TaskTags) -> Record:
    """The line of one task, as primitives."""
    record: Record = json.loads(json.dumps(asdict(tags)))
    return record


def read_tags(path: Path, *, ignore_cut_off: bool = False) -> dict[str, Record]:
    """The lines of a file by task id; of two for one task the later one counts.

    Args:
        path: The file.
        ignore_cut_off: Leave out a last line that was cut off: whoever wrote it died.

    Raises:
        ConfigError: The file cannot be read, or a line is no annotation.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{KEY}: {path} cannot be read: {error}") from error
    records: dict[str, Record] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record["task_id"], str) or not _are_names(record["tags"]):
                raise TypeError("task_id must be a text and tags a list of texts")
        except (ValueError, KeyError, TypeError) as error:
            if ignore_cut_off and number == len(lines):
                break
            raise ConfigError(f"{KEY}: {path} line {number} is no annotation: {error}") from error
        records[record["task_id"]] = record
    return records


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(tag, str) and tag for tag in value)


def line(record: Record) -> str:
    """One line of the file."""
    return clean_text(json.dumps(record, ensure_ascii=False)) + "\n"


def write_tags(path: Path, records: Iterable[Record]) -> None:
    """Write the file anew, by task id; whenever the process dies, the old or the new one is there.

    Raises:
        ConfigError: The file cannot be written.
    """
    hidden = path.with_name(f".writing_{path.name}")
    ordered = sorted(records, key=lambda record: str(record["task_id"]))
    try:
        hidden.write_text("".join(map(line, ordered)), encoding="utf-8")
        hidden.rename(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error}; give another file by --out"
        ) from error


def with_tags(tasks: Sequence[Task], path: Path) -> list[Task]:
    """The tasks with the task types of a file in place of their own keywords.

    A task without a line has no type: discovery and fallback still reach it. Lines of other tasks
    are ignored. If a task is not what it was when it was annotated, a warning says so.

    Raises:
        ConfigError: The file cannot be read, or knows none of the tasks.
    """
    records = read_tags(path)
    missing = [task.id for task in tasks if task.id not in records]
    if len(missing) == len(tasks):
        raise ConfigError(
            f"{KEY}: {path} has no line for any of the {len(tasks)} tasks; its ids look like "
            f"{next(iter(records), '(none)')!r}, the tasks' like {tasks[0].id!r}. Annotate the "
            "same folders as datamodule.corpus names"
        )
    if missing:
        log.warning(
            "%s: %d of %d tasks have no line in %s and no task type, such as %s",
            KEY, len(missing), len(tasks), path, missing[0],
        )  # fmt: skip
    changed = [
        task.id
        for task in tasks
        if task.id in records and records[task.id].get("task_hash") not in (None, task_hash(task))
    ]
    if changed:
        log.warning(
            "%s: %d tasks are not what they were when %s was written, such as %s",
            KEY, len(changed), path, changed[0],
        )  # fmt: skip
    return [
        replace(task, tags=tuple(records[task.id]["tags"]) if task.id in records else ())
        for task in tasks
    ]
