"""The run's folder: `<output_dir>/<experiment_name>/<time>/`, and how a run is found again."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError

_CHECKPOINT = re.compile(r"step_([0-9]{6,})")
_SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password)$", re.IGNORECASE)
_HIDDEN = "<hidden>"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Where one run keeps everything.

    Attributes:
        path: The folder.
        checkpoint: Checkpoint to start from; `None` for a fresh run.
    """

    path: Path
    checkpoint: Path | None = None

    @property
    def checkpoints(self) -> Path:
        """Resumable checkpoints, one folder a step."""
        return self.path / "checkpoints"

    @property
    def trajectories(self) -> Path:
        """One compressed JSON-lines file a step."""
        return self.path / "trajectories"

    @property
    def pool_log(self) -> Path:
        """Every life-cycle event of the pool."""
        return self.path / "pool.jsonl"

    @property
    def final_model(self) -> Path:
        """The trained policy as a Hugging Face folder."""
        return self.path / "final_model"


def checkpoint_name(step: int) -> str:
    """Folder name of the checkpoint after `step` iterations; needs no quoting on a command line."""
    return f"step_{step:06d}"


def checkpoint_step(path: Path) -> int:
    """The step a checkpoint folder stands for.

    Raises:
        ConfigError: The folder is not one of ours.
    """
    match = _CHECKPOINT.fullmatch(path.name)
    if match is None:
        raise ConfigError(
            f"ckpt_path: {str(path)!r} is not a checkpoint of this program; "
            f"its folder would be called {checkpoint_name(10)} or alike"
        )
    return int(match[1])


def complete_checkpoints(run: Path) -> list[Path]:
    """The run's finished checkpoints, oldest first; a save that was cut off is not among them."""
    found = [
        path
        for path in (run / "checkpoints").glob("step_*")
        if path.is_dir() and _CHECKPOINT.fullmatch(path.name)
    ]
    return sorted(found, key=checkpoint_step)


def open_run_folder(cfg: DictConfig, *, overrides: list[str]) -> RunFolder:
    """Make the folder of a fresh run, or find the one to go on in.

    Args:
        cfg: The composed configuration.
        overrides: The command line's overrides, kept for the record.

    Raises:
        ConfigError: `ckpt_path=last` and no run of this experiment has a checkpoint.
    """
    parent = Path(cfg.paths.output_dir) / cfg.experiment_name
    if cfg.ckpt_path == "last":
        checkpoint = _newest_checkpoint(parent)
    elif cfg.ckpt_path is not None:
        checkpoint = Path(cfg.ckpt_path).resolve()
        checkpoint_step(checkpoint)
    else:
        path = _make_fresh(parent)
        _write_config(path, cfg, overrides)
        return RunFolder(path=path)
    return RunFolder(path=checkpoint.parent.parent, checkpoint=checkpoint)


def _newest_checkpoint(parent: Path) -> Path:
    for run in sorted(parent.glob("*"), reverse=True):
        checkpoints = complete_checkpoints(run)
        if checkpoints:
            return checkpoints[-1].resolve()
    raise ConfigError(
        f"ckpt_path=last: no run below {str(parent)!r} has a checkpoint; "
        "start without ckpt_path, or set experiment_name and paths.output_dir as in that run"
    )


def _make_fresh(parent: Path) -> Path:
    """A new folder named by the time; a second run in the same second gets a suffix."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(1000):
        path = parent / (stamp if attempt == 0 else f"{stamp}-{attempt:03d}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path.resolve()
    raise ConfigError(f"paths.output_dir: no free folder name below {str(parent)!r}")


def _write_config(path: Path, cfg: DictConfig, overrides: list[str]) -> None:
    folder = path / ".hydra"
    folder.mkdir()
    OmegaConf.save(_without_secrets(OmegaConf.to_container(cfg)), folder / "config.yaml")
    shown = [
        f"{key}={_HIDDEN}" if _SECRET.search(key.rpartition(".")[2]) else f"{key}{sign}{value}"
        for key, sign, value in (override.partition("=") for override in overrides)
    ]
    OmegaConf.save(OmegaConf.create(shown), folder / "overrides.yaml")


def _without_secrets(node: Any) -> Any:
    """The configuration with the values of keys that are named like a secret hidden."""
    if isinstance(node, dict):
        return {
            key: _HIDDEN
            if isinstance(value, str) and _SECRET.search(str(key))
            else _without_secrets(value)
            for key, value in node.items()
        }
    return [_without_secrets(value) for value in node] if isinstance(node, list) else node
