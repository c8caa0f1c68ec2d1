"""Weights of a run's checkpoint for a model outside of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

from arise.errors import ConfigError


def load_checkpoint_weights(model: Any, folder: Path) -> None:
    """Put the weights of a sharded checkpoint into `model`, whatever number of processes wrote it.

    Args:
        model: A model of transformers of the checkpoint's architecture.
        folder: A folder below a run's `checkpoints/`.

    Raises:
        ConfigError: It is no checkpoint, or one of another architecture.
    """
    try:
        entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    except (OSError, EOFError) as error:
        raise ConfigError(f"checkpoint: {str(folder)!r} cannot be read: {error}") from error
    own = model.state_dict()
    keys: dict[str, str] = {}
    for name in own:
        found = [key for key in entries if key.endswith(f".{name}") and "optimizer" not in key]
        if found:
            keys[name] = min(found, key=len)
    loaded = {key: torch.empty_like(own[name]) for name, key in keys.items()}
    wrong = [
        name
        for name, key in keys.items()
        if tuple(getattr(entries[key], "size", ())) != tuple(own[name].shape)
    ]
    shared = {own[name].data_ptr() for name in keys}
    missing = [name for name in own if name not in keys and own[name].data_ptr() not in shared]
    if wrong or missing:
        raise ConfigError(
            f"checkpoint: {str(folder)!r} is of another model than `model`: "
            f"{(wrong or missing)[0]} does not fit"
        )
    dcp.load(loaded, storage_reader=FileSystemReader(folder), no_dist=True)
    with torch.no_grad():
        for name, key in keys.items():
            own[name].copy_(loaded[key])
