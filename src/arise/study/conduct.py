"""A study from its configuration to its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from arise.errors import AriseError, ConfigError
from arise.runs.lock import RunLock
from arise.study.collect import RunData
from arise.study.data import StudyData
from arise.study.settings import plan_runs
from arise.study.state import RunState, look_up_all


def conduct(cfg: DictConfig, *, root: Path) -> None:
    """Plan, train, probe and report; whatever is done already is not done again.

    Args:
        cfg: The composed `configs/study.yaml`.
        root: Folder with `train.py` and `configs/`.

    Raises:
        ConfigError: The study is impossible, another process works on it, or nothing is finished.
        AriseError: A run failed; the report is of the others.
    """
    specs = plan_runs(cfg, configs=root / "configs")
    folder = Path(cfg.output_dir)
    if cfg.only_report:  # also while another process goes on with the study
        report(cfg, look_up_all(specs), folder)
        return
    from arise.study.execute import run_all

    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder)
    try:
        failed = run_all(
            look_up_all(specs), root=root, logs=folder / "logs", processes=cfg.processes
        )
        report(cfg, look_up_all(specs), folder)
    finally:
        lock.release()
    if failed:
        listed = "; ".join(f"{spec.name}, see {log}" for spec, log in failed)
        raise AriseError(
            f"{len(failed)} of {len(specs)} runs failed: {listed}. Start the study again to go on "
            "with them"
        )


def report(cfg: DictConfig, states: Sequence[RunState], folder: Path) -> None:
    """Probe and report the runs that are finished.

    Raises:
        ConfigError: None is.
    """
    from arise.study.probes import probe_all
    from arise.study.report import write_report

    runs = finished_runs(states)
    if not runs:
        raise ConfigError(
            f"output_dir: no run below {folder} is finished and evaluated, so there is nothing to "
            "report"
        )
    if not cfg.only_report:
        probe_all([run for own in runs.values() for run in own], cfg, folder / "probes")
    data = StudyData(
        runs=runs,
        method=cfg.method,
        baseline=cfg.baseline,
        probes=folder / "probes",
        stage_steps=cfg.stage_steps,
    )
    path = write_report(data, folder / "report")
    count = sum(map(len, runs.values()))
    print(f"report of {count} of {len(states)} runs: {path}", flush=True)


def finished_runs(states: Sequence[RunState]) -> dict[str, list[RunData]]:
    """The finished and evaluated runs by experiment, in the order of the plan."""
    runs: dict[str, list[RunData]] = {}
    for state in states:
        if state.folder is None or not state.is_finished:
            continue
        interval = int(OmegaConf.select(state.spec.config, "rubrics.update_interval"))
        run = RunData(
            experiment=state.spec.experiment,
            seed=state.spec.seed,
            folder=state.folder,
            update_interval=interval,
            config=state.spec.config,
        )
        if run.results:
            runs.setdefault(run.experiment, []).append(run)
    return runs
