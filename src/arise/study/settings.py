"""The schema of `configs/study.yaml` and the runs that a study consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from arise.config_limits import STUDY_RANGES
from arise.errors import ConfigError


@dataclass
class AllFailProbe:
    """All-fail groups on a fixed task set; see `configs/study.yaml`."""

    experiments: list[str] = MISSING
    tasks: int = MISSING
    rollouts: int = MISSING


@dataclass
class RetentionProbe:
    """Behaviour after retirement; see `configs/study.yaml`."""

    experiments: list[str] = MISSING
    rollouts: int = MISSING


@dataclass
class StudyConfig:
    """The whole study; see `configs/study.yaml`."""

    output_dir: str = MISSING
    experiments: list[str] = MISSING
    seeds: list[int] = MISSING
    overrides: list[str] = MISSING
    processes: int = MISSING
    method: str = MISSING
    baseline: str = MISSING
    stage_steps: int = MISSING
    all_fail: AllFailProbe = MISSING
    retention: RetentionProbe = MISSING
    only_report: bool = MISSING


def register() -> None:
    """Put the schema into Hydra's ConfigStore; safe to repeat."""
    ConfigStore.instance().store(name="study_schema", node=StudyConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run of a study.

    Attributes:
        experiment: Name below `configs/experiment/`.
        seed: The run's seed.
        parent: Folder in which `train.py` puts the run's folder.
        overrides: Its command line.
        config: What that composes to.
    """

    experiment: str
    seed: int
    parent: Path
    overrides: tuple[str, ...]
    config: DictConfig

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.experiment} seed {self.seed}"

    @property
    def max_steps(self) -> int:
        """Iterations of the run."""
        return int(self.config.trainer.max_steps)


def plan_runs(study: DictConfig, *, configs: Path) -> list[RunSpec]:
    """All runs, seed by seed, so that a study that is not finished is paired all the same.

    Every configuration is composed and validated here, before the first run.

    Args:
        study: The study's configuration.
        configs: The folder of all groups.

    Raises:
        ConfigError: The study or a run's configuration is impossible.
    """
    _check(study)
    runs = Path(study.output_dir).resolve() / "runs"
    # Composing takes a fraction of a second: once an experiment, not once a run.
    composed = {
        name: _compose(_overrides(study, name, runs), configs) for name in study.experiments
    }
    return [
        _spec(study, name, int(seed), runs, composed[name])
        for seed in study.seeds
        for name in study.experiments
    ]


def _overrides(study: DictConfig, experiment: str, runs: Path) -> tuple[str, ...]:
    """The command line of an experiment's runs, without what differs between seeds."""
    output_dir = f"paths.output_dir={quoted(str(runs))}"
    return (f"experiment={experiment}", *study.overrides, output_dir)


def _spec(
    study: DictConfig, experiment: str, seed: int, runs: Path, composed: DictConfig
) -> RunSpec:
    name = f"{experiment.replace('/', '-')}/seed_{seed}"
    config = composed.copy()
    config.seed, config.experiment_name = seed, name
    OmegaConf.resolve(config)
    return RunSpec(
        experiment=experiment,
        seed=seed,
        parent=runs / name,
        overrides=(
            *_overrides(study, experiment, runs),
            f"seed={seed}",
            f"experiment_name={name}",
        ),
        config=config,
    )


def quoted(value: str) -> str:
    """A value as Hydra's command line takes any text."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _compose(overrides: Sequence[str], configs: Path) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from arise.config import register_schemas
    from arise.validation import validate

    register_schemas()
    # The command line that started the study holds the one place for composing.
    place = GlobalHydra.instance()
    ours, place.hydra = place.hydra, None
    try:
        with initialize_config_dir(config_dir=str(configs), version_base="1.3"):
            cfg = compose(config_name="train", overrides=list(overrides))
    finally:
        place.hydra = ours
    validate(cfg)
    return cfg


def _check(study: DictConfig) -> None:
    for key in ("experiments", "seeds"):
        values = list(study[key])
        if not values or len(set(values)) != len(values):
            raise ConfigError(f"{key} = {values} must name at least one, and none twice")
    for key, allowed in STUDY_RANGES.items():
        value = OmegaConf.select(study, key)
        if value not in allowed:
            raise ConfigError(f"{key} = {value} is not in {allowed}")
    for override in study.overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key in ("experiment", "seed", "experiment_name", "paths.output_dir", "ckpt_path"):
            raise ConfigError(
                f"overrides: {override!r} sets {key}, which the study sets itself; use the "
                "study's experiments, seeds and output_dir"
            )
