"""Verdicts that were paid for once: kept on disk, found again after a resume.

A verdict belongs to the rubric's text, the trajectory as the judge saw it, the prompt file and the
model; the pair's id and the task's place in the batch are no part of it. Findings belong to the
complete pool, since they name the pairs that cover them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arise.rubrics.payloads import RubricView, TrajectoryView

log = logging.getLogger(__name__)

_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID"
_BATCH = 500


def digest(*parts: Any) -> str:
    """SHA-256 of values that JSON can hold, by their content."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def trajectory_digest(view: TrajectoryView) -> str:
    """Names what the judge sees of a trajectory, the shortening included."""
    return digest(asdict(view))


def verdict_key(rubric: RubricView, trajectory: str, *, prompt_hash: str, model: str) -> str:
    """Key of one verdict.

    Args:
        rubric: The criterion; its id does not count.
        trajectory: From `trajectory_digest`.
        prompt_hash: Of the prompt file that asks for the verdict.
        model: Name of the judge model.
    """
    text = {name: value for name, value in asdict(rubric).items() if name != "id"}
    return digest("verdict", text, trajectory, prompt_hash, model)


def findings_key(
    pool: Sequence[RubricView], trajectory: str, *, prompt_hash: str, model: str
) -> str:
    """Key of the diagnostics of one trajectory under a pool; see `verdict_key`."""
    return digest("findings", [asdict(r) for r in pool], trajectory, prompt_hash, model)


class VerdictCache:
    """Answers by key, in one SQLite file that is opened at the first use.

    Every write is a transaction, so a process that dies loses nothing that was written. A cache is
    no ground to end a run: if the file cannot be used, that is logged once and nothing is found.

    Args:
        path: The file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._is_broken = False

    def get(self, keys: Iterable[str]) -> dict[str, Any]:
        """What is known of `keys`."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Any] = {}
        try:
            for start in range(0, len(wanted), _BATCH):
                batch = wanted[start : start + _BATCH]
                marks = ",".join("?" * len(batch))
                rows = self._open().execute(
                    f"SELECT key, value FROM answers WHERE key IN ({marks})", batch
                )
                found.update((key, json.loads(value)) for key, value in rows)
        except (sqlite3.Error, ValueError) as error:
            self._give_up(error)
        return found

    def put(self, entries: Mapping[str, Any]) -> None:
        """Remember values that JSON can hold; a key that is there already keeps its value."""
        rows = [(key, json.dumps(value)) for key, value in entries.items()]
        if not rows:
            return
        try:
            with self._open() as connection:
                connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            self._give_up(error)

    def close(self) -> None:
        """Let go of the file; safe to repeat."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._is_broken:
            self._connection = self._connection or _connect(":memory:")
        elif self._connection is None:
            self._connection = _connect(str(self._path))
        return self._connection

    def _give_up(self, error: Exception) -> None:
        """Go on with an empty cache in memory."""
        log.warning("%s cannot be used, verdicts are not kept: %s", self._path, error)
        self.close()
        self._is_broken = True


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    try:
        # A process that dies costs nothing either way; only a machine that dies could.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_TABLE)
    except sqlite3.Error:
        connection.close()
        raise
    return connection
