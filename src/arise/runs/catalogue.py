"""Which runs there are and how they stand, from their folders alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.folder import RunFolder, checkpoint_step, complete_checkpoints
from arise.runs.lock import is_locked
from arise.runs.records import record_step
from arise.runs.resume import config_in_force

_NEWEST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """How a run stands.

    Attributes:
        path: Its folder.
        experiment: `experiment_name`.
        state: `"running"` (a living process has it), `"finished"`, `"stopped"` (it can go on), or
            `"no checkpoint"` (it cannot).
        steps: Iterations recorded.
        max_steps: Iterations asked for; `None` if the configuration is not there.
        checkpoint: Step of the newest checkpoint.
        held_out_percent: Newest held-out pass rate.
        held_out_step: Policy version that it belongs to.
    """

    path: str
    experiment: str
    state: str
    steps: int
    max_steps: int | None
    checkpoint: int | None
    held_out_percent: float | None
    held_out_step: int | None

    def to_dict(self) -> dict[str, Any]:
        """Primitives, for `--json`."""
        return asdict(self)


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return (path / ".hydra" / "config.yaml").is_file()


def find_runs(output_dir: Path) -> list[Path]:
    """All runs below a folder, by experiment and time."""
    found = {file.parent.parent for file in output_dir.rglob(".hydra/config.yaml")}
    return sorted(path for path in found if is_run(path))


def resolve_run(text: str, output_dir: Path) -> Path:
    """The run that a command line names: its folder, or `last` for the newest one.

    Raises:
        ConfigError: There is no such run.
    """
    if text == "last":
        runs = find_runs(output_dir)
        if not runs:
            raise ConfigError(f"no run below {str(output_dir)!r}; say where with --outputs")
        return max(runs, key=lambda path: path.name)
    path = Path(text)
    if not is_run(path):
        raise ConfigError(
            f"{text!r} is not a run's folder: it has no .hydra/config.yaml; "
            "give <output_dir>/<experiment>/<time>, or `last`"
        )
    return path


def read_config(run: Path) -> DictConfig:
    """The run's newest configuration.

    Raises:
        ConfigError: It is not readable.
    """
    try:
        config = config_in_force(run, _NEWEST)
    except Exception as error:
        raise ConfigError(f"{run}/.hydra/config.yaml cannot be read: {error}") from error
    return config if config is not None else OmegaConf.create({})


def recorded_steps(run: Path) -> list[int]:
    """Steps whose trajectories are there, ascending."""
    return sorted(map(record_step, RunFolder(path=run).trajectories.glob("step_*.jsonl.gz")))


def read_results(run: Path) -> list[dict[str, Any]]:
    """Held-out results by step: `step`, `percent`, `runs_percent`, `num_tasks`, `num_errors`."""
    path = RunFolder(path=run).evaluations
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summarize(run: Path) -> RunSummary:
    """How a run stands."""
    config = read_config(run)
    checkpoints = complete_checkpoints(run)
    newest = checkpoint_step(checkpoints[-1]) if checkpoints else None
    max_steps = OmegaConf.select(config, "trainer.max_steps")
    if is_locked(run):
        state = "running"
    elif newest is None:
        state = "no checkpoint"
    else:
        state = "finished" if max_steps is not None and newest >= max_steps else "stopped"
    results = read_results(run)
    return RunSummary(
        path=str(run),
        experiment=str(OmegaConf.select(config, "experiment_name", default="?")),
        state=state,
        steps=max(recorded_steps(run), default=0),
        max_steps=max_steps,
        checkpoint=newest,
        held_out_percent=results[-1]["percent"] if results else None,
        held_out_step=results[-1]["step"] if results else None,
    )
