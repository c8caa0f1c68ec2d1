"""How the runs of a study stand, from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.catalogue import is_run
from arise.runs.folder import checkpoint_step, complete_checkpoints, without_secrets
from arise.runs.resume import changed_keys, config_in_force
from arise.study.settings import RunSpec

# A resumed run may change these; a study that did would compare figures of different making.
_ALSO_FIXED = ("evaluation", "datamodule")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How one run stands.

    Attributes:
        spec: The run.
        folder: Its newest folder with a checkpoint; `None` if it has none.
        steps: Iterations that are safe in a checkpoint.
    """

    spec: RunSpec
    folder: Path | None
    steps: int

    @property
    def is_finished(self) -> bool:
        """Whether the last checkpoint is the run's end."""
        return self.steps >= self.spec.max_steps


def look_up(spec: RunSpec) -> RunState:
    """Find a run's folder.

    Raises:
        ConfigError: The folder's run was made with other settings than the study's.
    """
    for folder in sorted(spec.parent.glob("*"), reverse=True):
        checkpoints = complete_checkpoints(folder)
        if is_run(folder) and checkpoints:
            steps = checkpoint_step(checkpoints[-1])
            _require_same(spec, folder, steps)
            return RunState(spec=spec, folder=folder, steps=steps)
    return RunState(spec=spec, folder=None, steps=0)


def look_up_all(specs: Sequence[RunSpec]) -> list[RunState]:
    """All runs of a study, in the order of its plan."""
    return [look_up(spec) for spec in specs]


def _require_same(spec: RunSpec, folder: Path, steps: int) -> None:
    saved = config_in_force(folder, steps)
    if saved is None:
        return
    now = without_secrets(spec.config)
    changes = [f"  {key}: {old!r} -> {new!r}" for key, old, new in changed_keys(saved, now)]
    for group in _ALSO_FIXED:
        if _plain(saved, group) != _plain(now, group):
            changes.append(f"  {group}: other task sets or attempts")
    if changes:
        listed = "\n".join(changes)
        raise ConfigError(
            f"output_dir: {folder} was made with other settings (then -> now):\n{listed}\n"
            "A study compares runs of the same making. Give the old settings, or another output_dir"
        )


def _plain(config: DictConfig, group: str) -> object:
    return OmegaConf.to_container(config[group], resolve=True) if group in config else None
