"""`dry_run=true`: what a run would do and need, without starting any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from arise.assembly import build, load_tasks

if TYPE_CHECKING:
    from arise.planning.plan import Plan


def dry_run(cfg: DictConfig) -> None:
    """Print the plan of a run.

    Args:
        cfg: The validated and resolved configuration.

    Raises:
        ConfigError: The tasks or the model's configuration cannot be read.
    """
    from arise.planning.report import print_plan

    print_plan(plan_of(cfg))


def plan_of(cfg: DictConfig) -> Plan:
    """The plan of a run; tasks are read, of the model only its configuration.

    Args:
        cfg: The validated and resolved configuration.

    Raises:
        ConfigError: The tasks or the model's configuration cannot be read.
    """
    from arise.planning.plan import make_plan

    tasks = load_tasks(cfg.datamodule)
    loader = build(cfg.model.loader)

    return make_plan(
        cfg,
        build=loader.empty_model,
        engine=_engine(cfg),
        is_gpu=_is_gpu(cfg),
        num_tasks=len(tasks),
    )


def _engine(cfg: DictConfig) -> Any:
    """The group of the engine, or that of the candidate that this machine would get."""
    if "candidates" not in cfg.engine:
        return cfg.engine
    from arise.inference.auto import best_engine

    return cfg.engine.candidates[best_engine(list(map(str, cfg.engine.candidates)))]


def _is_gpu(cfg: DictConfig) -> bool:
    if cfg.trainer.accelerator != "auto":
        return cfg.trainer.accelerator != "cpu"
    import torch

    return torch.cuda.is_available()
