"""The run's folder: `<output_dir>/<experiment_name>/<time>/`, and how a run is found again."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.lock import RunLock

log = logging.getLogger(__name__)

_CHECKPOINT = re.compile(r"step_([0-9]{6,})")
_SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password)$", re.IGNORECASE)
_HIDDEN = "<hidden>"
_SHARED = "ARISE_RUN_FOLDER"
# Set by torchrun: how often it has started all processes again.
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Where one run keeps everything.

    Attributes:
        path: The folder.
        checkpoint: Checkpoint to start from; `None` for a fresh run.
        lock: Keeps other processes out; `None` where this process only reads, or is not the first
            of several.
    """

    path: Path
    checkpoint: Path | None = None
    lock: RunLock | None = None

    def release(self) -> None:
        """Let other processes in; safe to repeat."""
        if self.lock is not None:
            self.lock.release()

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
    def verdict_cache(self) -> Path:
        """Verdicts that need not be asked for again."""
        return self.path / "verdicts.sqlite"

    @property
    def evaluations(self) -> Path:
        """Held-out results, one JSON line each."""
        return self.path / "evaluations.jsonl"

    @property
    def tokenizer(self) -> Path:
        """The policy's tokenizer, from the run's start."""
        return self.path / "tokenizer"

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


def newest_checkpoint(run: Path) -> str:
    """A sentence on where a run that has ended can go on."""
    checkpoints = complete_checkpoints(run)
    if not checkpoints:
        return "There is no checkpoint yet"
    return f"The newest checkpoint is {checkpoints[-1]}; go on with ckpt_path=last"


def find_checkpoint(cfg: DictConfig) -> Path | None:
    """The checkpoint that `ckpt_path` names; `None` if a fresh run is asked for.

    `last` is the newest checkpoint of the newest run of this experiment that has one. A run that
    torchrun starts again after a process died goes on like that by itself, if there is one.

    Raises:
        ConfigError: `ckpt_path=last` and no run of this experiment has a checkpoint, or the folder
            has not the name of a checkpoint.
    """
    parent = Path(cfg.paths.output_dir) / cfg.experiment_name
    if cfg.ckpt_path is None:
        is_again = int(os.environ.get(_RESTARTS, "0")) > 0
        has_some = any(complete_checkpoints(run) for run in parent.glob("*"))
        return _newest_checkpoint(parent) if is_again and has_some else None
    if cfg.ckpt_path == "last":
        shared = _folder_of_first_process()
        if shared is not None:
            return complete_checkpoints(shared)[-1]
        return _newest_checkpoint(parent)
    checkpoint = Path(cfg.ckpt_path).resolve()
    checkpoint_step(checkpoint)
    return checkpoint


def make_run_folder(cfg: DictConfig, *, overrides: list[str]) -> RunFolder:
    """The locked folder of a fresh run, with its configuration.

    Args:
        cfg: The composed configuration.
        overrides: The command line's overrides, kept for the record.

    Raises:
        ConfigError: No free folder name was found.
    """
    if not is_first_process():
        shared = _folder_of_first_process()
        # Without a word from the first process: a place where the others write nothing.
        return RunFolder(path=shared or Path(cfg.paths.output_dir).resolve())
    path = _make_fresh(Path(cfg.paths.output_dir) / cfg.experiment_name)
    folder = path / ".hydra"
    folder.mkdir()
    OmegaConf.save(without_secrets(cfg), folder / "config.yaml")
    write_overrides(folder, overrides)
    return RunFolder(path=path, lock=RunLock(path))


def is_first_process() -> bool:
    """Whether this process is the one of several that writes the run's folder."""
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    parts = ("SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in parts)


def share_run_folder(folder: RunFolder) -> None:
    """Tell the processes that this one is about to start which folder the run has."""
    os.environ[_SHARED] = str(folder.path)


def _folder_of_first_process() -> Path | None:
    path = os.environ.get(_SHARED)
    return None if path is None or is_first_process() else Path(path)


def _newest_checkpoint(parent: Path) -> Path:
    for run in sorted(parent.glob("*"), reverse=True):
        checkpoints = complete_checkpoints(run)
        if checkpoints:
            return checkpoints[-1].resolve()
        if run.is_dir():
            log.warning("%s has no checkpoint and is passed over", run)
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


def write_overrides(folder: Path, overrides: list[str]) -> None:
    """Keep the command line's overrides as `overrides.yaml`, without secrets."""
    shown = [
        f"{key}={_HIDDEN}" if _SECRET.search(key.rpartition(".")[2]) else f"{key}{sign}{value}"
        for key, sign, value in (override.partition("=") for override in overrides)
    ]
    OmegaConf.save(OmegaConf.create(shown), folder / "overrides.yaml")


def without_secrets(cfg: DictConfig) -> DictConfig:
    """The configuration with the values of keys that are named like a secret hidden."""
    return OmegaConf.create(_hide(OmegaConf.to_container(cfg)))


def _hide(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _HIDDEN if isinstance(value, str) and _SECRET.search(str(key)) else _hide(value)
            for key, value in node.items()
        }
    return [_hide(value) for value in node] if isinstance(node, list) else node
