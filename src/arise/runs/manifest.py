"""The label of a checkpoint: its format, its step and its files, readable without heavy imports.

Every checkpoint folder holds an `arise.json`, written last. So a folder that another program made,
a newer version's, or a damaged copy is told apart in milliseconds and in one sentence.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.runs.folder import checkpoint_step

FORMAT = 1
"""Number of the checkpoint format that this version writes; it reads this one and older ones."""

HASHED_BYTES = 64 * 2**20
"""Files up to this size carry a checksum: state and indices always, weights of small models."""

_FILE = "arise.json"


def write_manifest(folder: Path, *, step: int, num_processes: int) -> None:
    """Label a checkpoint whose other files are complete.

    Args:
        folder: The checkpoint, perhaps still under its hidden name.
        step: Iterations done, k+1.
        num_processes: Ranks that saved it.
    """
    content = {
        "format": FORMAT,
        "step": step,
        "num_processes": num_processes,
        "files": {
            path.relative_to(folder).as_posix(): _describe(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != _FILE
        },
    }
    (folder / _FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The label of a checkpoint whose files are all there and are what was saved.

    Raises:
        ConfigError: The folder is no checkpoint of this program, is of a newer format, or lacks
            data.
    """
    try:
        content = json.loads((checkpoint / _FILE).read_text(encoding="utf-8"))
        version = int(content["format"])
    except FileNotFoundError:
        raise ConfigError(
            f"ckpt_path: {str(checkpoint)!r} is not a checkpoint of this program: it has no {_FILE}"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"ckpt_path: {str(checkpoint / _FILE)!r} is damaged and cannot be read ({error}); "
            "give an older checkpoint of the run"
        ) from error
    if version > FORMAT:
        raise ConfigError(
            f"ckpt_path: {str(checkpoint)!r} has format {version}, written by a newer version of "
            f"this program; this version reads formats up to {FORMAT}: update the program"
        )
    _require_files(checkpoint, content)
    return content


def _describe(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    entry: dict[str, Any] = {"bytes": size}
    if size <= HASHED_BYTES:
        entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return entry


def _require_files(checkpoint: Path, content: dict[str, Any]) -> None:
    for name, expected in content["files"].items():
        path = checkpoint / name
        found = _describe(path) if path.is_file() else None
        if found == expected:
            continue
        what = "has other content than was saved"
        if found is None:
            what = "is missing"
        elif found["bytes"] != expected["bytes"]:
            what = f"has {found['bytes']} of {expected['bytes']} bytes"
        raise ConfigError(
            f"ckpt_path: {str(checkpoint)!r} is damaged: {name} {what}; "
            "give an older checkpoint of the run"
        )
    if content["step"] != checkpoint_step(checkpoint):
        raise ConfigError(
            f"ckpt_path: {str(checkpoint)!r} holds step {content['step']}, not the one it is named "
            "after; give it its own name back"
        )
