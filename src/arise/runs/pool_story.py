"""The life of every pair of a run, with the reasons, and the choice of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from arise.errors import ConfigError
from arise.rubrics.events import Event, last_id, read_events, replay
from arise.runs.catalogue import read_config, recorded_steps
from arise.runs.evidence import Evidence, read_step
from arise.runs.folder import RunFolder
from arise.runs.reasons import why_event, why_task

_STATES = {"activated": "active", "hidden": "hidden", "retired": "retired"}


def read_pool(run: Path) -> list[Event]:
    """The run's pool events.

    Raises:
        ConfigError: The run has none.
    """
    path = RunFolder(path=run).pool_log
    if not path.is_file():
        raise ConfigError(f"{run} has no pool: nothing was ever proposed, or it runs rubrics=none")
    return read_events(path, key="pool", ignore_cut_off=True)


def pool_story(run: Path, *, until_step: int | None, pair_id: int | None) -> list[dict[str, Any]]:
    """Every pair that ever was in the pool, in id order, with its events and their reasons.

    Args:
        run: The run's folder.
        until_step: The pool as it stood after this step; `None` for all of it.
        pair_id: Only this pair; `None` for all.

    Raises:
        ConfigError: The run has no pool, or no such pair.
    """
    events = [e for e in read_pool(run) if until_step is None or e["step"] <= until_step]
    known = range(1, last_id(events) + 1)
    if pair_id is not None and pair_id not in known:
        raise ConfigError(f"pair {pair_id} is not among the {len(known)} pairs of {run}")
    config = read_config(run)
    bounds = {
        key: float(OmegaConf.select(config, f"rubrics.{key}")) for key in ("eta_low", "eta_high")
    }
    interval = int(OmegaConf.select(config, "rubrics.update_interval"))
    evidence = Evidence(run, recorded_steps(run), update_interval=interval)
    replay(events, where="pool.jsonl")  # raises if they contradict each other
    stories: dict[int, dict[str, Any]] = {}
    for event in events:
        own = event.get("pair_id")
        if own is None or (pair_id is not None and own != pair_id):
            continue
        if event["type"] in ("created", "imported"):
            stories[own] = _card(event)
        told = {key: value for key, value in event.items() if key not in ("pair", "evidence")}
        told["why"] = why_event(event, **bounds)
        told["evidence"] = evidence.of(event)
        stories[own]["events"].append(told)
        stories[own]["state"] = _STATES.get(event["type"], stories[own]["state"])
        stories[own]["skill"] = event.get("text", stories[own]["skill"])
    return [stories[own] for own in sorted(stories)]


def _card(event: Event) -> dict[str, Any]:
    pair = event["pair"]
    return {
        "pair_id": event["pair_id"],
        "title": pair["title"],
        "capability": pair["capability"],
        "state": pair["skill"]["state"],
        "rubric": pair["rubric"],
        "skill": pair["skill"]["text"],
        "events": [],
    }


def chosen_tasks(run: Path, step: int) -> list[dict[str, Any]]:
    """The tasks of a step in the order in which they were drawn, and why each was.

    Raises:
        ConfigError: The step is not recorded.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for slot in read_step(run, step):
        task = tasks.setdefault(
            slot["task_id"],
            {
                "task_id": slot["task_id"],
                "tags": slot["tags"],
                "why": why_task(slot),
                **{key: value for key, value in slot.items() if key.startswith("sampled_")},
                "rewards": [],
                "advantages": [],
            },
        )
        task["rewards"].append(slot.get("task_reward"))
        task["advantages"].append(slot.get("advantage"))
    return list(tasks.values())
