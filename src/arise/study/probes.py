"""What a report needs beyond training: checkpoints played again, kept as JSON beside the runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arise.evaluation.all_fail import all_fail_rate
from arise.evaluation.retention import behaviour_rate, retired_rubrics
from arise.rubrics.events import replay
from arise.runs.folder import checkpoint_step, complete_checkpoints
from arise.study.collect import RunData
from arise.study.player import Player
from arise.types import Task

_TASK_SEED = 0


def probe_all(runs: Sequence[RunData], study: DictConfig, folder: Path) -> None:
    """Probe every run that a probe names and that was not probed yet; one after the other.

    Args:
        runs: Finished runs.
        study: The study's configuration.
        folder: Where results are kept, one file a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        wanted = {
            name: OmegaConf.to_container(study[name])
            for name in ("all_fail", "retention")
            if run.experiment in study[name].experiments
        }
        wanted = {name: _settings(options, study) for name, options in wanted.items()}
        file = probe_file(folder, run)
        known = read_probe(folder, run)
        if not wanted or known.get("settings") == wanted:
            continue
        print(f"{run.experiment} seed {run.seed}: probing checkpoints", flush=True)
        result = {"settings": wanted, **probe(run, wanted)}
        hidden = file.with_name(f".writing_{file.name}")
        hidden.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        hidden.rename(file)


def _settings(options: Any, study: DictConfig) -> dict[str, Any]:
    kept = {key: value for key, value in options.items() if key != "experiments"}
    return {**kept, "stage_steps": study.stage_steps}


def probe_file(folder: Path, run: RunData) -> Path:
    """Where a run's results are kept."""
    return folder / f"{run.experiment.replace('/', '-')}-seed_{run.seed}.json"


def read_probe(folder: Path, run: RunData) -> dict[str, Any]:
    """A run's results; empty if it was not probed."""
    file = probe_file(folder, run)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def probe(run: RunData, wanted: dict[str, Any]) -> dict[str, Any]:
    """Play the checkpoints at the stages' ends.

    Returns:
        `all_fail`: percent by step. `retention`: for each retired rubric its title, step, percent
        at retirement and percent by later step.
    """
    from arise.runs.catalogue import read_config

    cfg = read_config(run.folder) if run.config is None else run.config
    result: dict[str, Any] = {"all_fail": {}, "retention": _retired(run)}
    every = next(iter(wanted.values()))["stage_steps"]
    checkpoints = [c for c in complete_checkpoints(run.folder) if checkpoint_step(c) % every == 0]
    with Player(cfg) as player:
        for checkpoint in checkpoints:
            step = checkpoint_step(checkpoint)
            player.use(checkpoint)
            if "all_fail" in wanted:
                result["all_fail"][str(step)] = _all_fail(run, cfg, player, step, wanted)
            if "retention" in wanted:
                _add_retention(run, player, step, wanted, result["retention"])
    return result


def fixed_tasks(tasks: dict[str, Task], count: int) -> list[Task]:
    """The same tasks for every run on the same training set, in id order."""
    ids = sorted(tasks)
    chosen = random.Random(_TASK_SEED).sample(ids, min(count, len(ids)))
    return [tasks[task_id] for task_id in sorted(chosen)]


def _all_fail(
    run: RunData, cfg: DictConfig, player: Player, step: int, wanted: dict[str, Any]
) -> float | None:
    pairs = replay(run.events, until_step=step).values()
    shows = cfg.rubrics.mode in ("dynamic", "frozen") and cfg.rubrics.skills.inject
    skills = tuple(pair.injected for pair in pairs if pair.is_active) if shows else ()
    options = wanted["all_fail"]
    return player.run(
        all_fail_rate(
            player.orchestrator,
            fixed_tasks(player.tasks, options["tasks"]),
            rollouts_per_task=options["rollouts"],
            sampling=player.sampling,
            skills=skills,
        )
    )


def _retired(run: RunData) -> list[dict[str, Any]]:
    return [
        {
            "title": retired.pair.title,
            "capability": retired.pair.capability.value,
            "step": retired.step,
            "percent": retired.percent,
            "num_tasks": len(retired.task_ids),
            "later": {},
        }
        for retired in retired_rubrics(run.events)
    ]


def _add_retention(
    run: RunData, player: Player, step: int, wanted: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    assert player.judge is not None
    for row, retired in zip(rows, retired_rubrics(run.events), strict=True):
        tasks = [player.tasks[id_] for id_ in retired.task_ids if id_ in player.tasks]
        if retired.step >= step or not tasks:
            continue
        rate = player.run(
            behaviour_rate(
                player.orchestrator,
                player.judge,
                retired.pair,
                tasks,
                rollouts_per_task=wanted["retention"]["rollouts"],
                sampling=player.sampling,
            )
        )
        row["later"][str(step)] = {
            "percent": rate.percent,
            "num_applicable": rate.num_applicable,
            "num_lost": rate.num_lost,
        }
