"""Read a run: `python -m arise.runs list|show|trajectory|pool|report`; reads its folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Group, RenderableType

from arise.errors import ConfigError
from arise.rubrics.events import replay
from arise.runs import rendering
from arise.runs.catalogue import find_runs, read_config, read_results, resolve_run, summarize
from arise.runs.evidence import read_step
from arise.runs.folder import RunFolder, complete_checkpoints
from arise.runs.manifest import read_manifest
from arise.runs.pool_page import PoolOverview, pair_page
from arise.runs.pool_story import chosen_tasks, pool_story, read_pool
from arise.runs.reasons import why_task
from arise.runs.report.build import write_report
from arise.runs.story import event_counts

_SETTINGS = (
    "seed",
    "model.name",
    "curriculum.sampler",
    "rubrics.mode",
    "rubrics.skills.inject",
    "rollout.tasks_per_step",
    "rollout.rollouts_per_task",
    "algorithm.rubric_weight",
    "algorithm.optimizer.lr",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0: done, 2: a mistake in what was asked for."""
    options = _parser().parse_args(arguments)
    try:
        data, page = options.command(options)
        if options.json:
            print(json.dumps(data, indent=1))
        else:
            rendering.show(page)
        sys.stdout.flush()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has seen enough; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m arise.runs", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="list|show|trajectory|pool|report")

    def add(name: str, command: Any, text: str) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=text, description=text)
        own.set_defaults(command=command)
        own.add_argument("--json", action="store_true", help="machine-readable output")
        own.add_argument(
            "--outputs", type=Path, default=Path("outputs"), help="where runs are (outputs)"
        )
        return own

    add("list", _list, "all runs: experiment, steps, last held-out pass rate, state")
    for name, command, text in (
        ("show", _show, "one run: state, settings, held-out results, pool"),
        ("trajectory", _trajectory, "one rollout with verdicts and advantage"),
        ("pool", _pool, "why pairs were activated, refined, hidden or retired, and tasks chosen"),
        ("report", _report, "the whole run as one HTML file for a browser"),
    ):
        own = add(name, command, text)
        own.add_argument("run", help="a run's folder, or `last`")
        if name == "trajectory":
            own.add_argument("step", type=int, help="optimizer step, from 1")
            own.add_argument("task", help="task id")
            own.add_argument("rollout", type=int, help="rollout of the group, from 0")
        if name == "pool":
            own.add_argument("--step", type=int, help="the pool and the tasks of this step (last)")
            own.add_argument(
                "--pair", type=int, help="only this pair, with every update, task and record"
            )
        if name == "report":
            own.add_argument("--output", type=Path, help="the file (report.html in the run)")
            own.add_argument(
                "--max-mb", type=float, default=200.0, help="shorten trajectories to fit (200)"
            )
    return parser


def _list(options: argparse.Namespace) -> tuple[Any, RenderableType]:
    summaries = [summarize(run).to_dict() for run in find_runs(options.outputs)]
    if not summaries:
        raise ConfigError(f"no run below {str(options.outputs)!r}; say where with --outputs")
    return summaries, rendering.runs_table(summaries)


def _show(options: argparse.Namespace) -> tuple[Any, RenderableType]:
    run = resolve_run(options.run, options.outputs)
    config = read_config(run)
    checkpoints = []
    for path in complete_checkpoints(run):
        label = read_manifest(path)
        checkpoints.append({key: label[key] for key in ("step", "num_processes", "format")})
    events = read_pool(run) if RunFolder(path=run).pool_log.is_file() else []
    page = {
        "run": summarize(run).to_dict(),
        "settings": {key: OmegaConf.select(config, key) for key in _SETTINGS},
        "checkpoints": checkpoints,
        "held_out": read_results(run),
        "pool": event_counts(events),
        "pairs": [
            {
                "pair_id": pair.id,
                "title": pair.title,
                "capability": pair.capability.value,
                "state": pair.skill.state.value,
            }
            for pair in replay(events, where="pool.jsonl").values()
        ],
    }
    return page, rendering.run_page(page)


def _trajectory(options: argparse.Namespace) -> tuple[Any, RenderableType]:
    run = resolve_run(options.run, options.outputs)
    slots = read_step(run, options.step)
    for slot in slots:
        if (slot["task_id"], slot["rollout"]) == (options.task, options.rollout):
            why = why_task(slot)
            page = rendering.trajectory_page(slot, why, _titles(run))
            return {**slot, "why": why}, page
    tasks = ", ".join(sorted({slot["task_id"] for slot in slots}))
    count = len({slot["rollout"] for slot in slots})
    raise ConfigError(
        f"step {options.step} has no rollout {options.rollout} of task {options.task!r}; "
        f"it has rollouts 0 to {count - 1} of {tasks}"
    )


def _titles(run: Path) -> dict[int, str]:
    if not RunFolder(path=run).pool_log.is_file():
        return {}
    return {e["pair_id"]: e["pair"]["title"] for e in read_pool(run) if "pair" in e}


def _pool(options: argparse.Namespace) -> tuple[Any, RenderableType]:
    run = resolve_run(options.run, options.outputs)
    pairs = pool_story(run, until_step=options.step, pair_id=options.pair)
    step = options.step if options.step is not None else summarize(run).steps
    tasks = chosen_tasks(run, step)
    in_full = options.pair is not None
    page = Group(
        PoolOverview(pairs),
        *(pair_page(pair, in_full=in_full) for pair in pairs),
        rendering.tasks_table(step, tasks),
    )
    return {"pairs": pairs, "step": step, "tasks": tasks}, page


def _report(options: argparse.Namespace) -> tuple[Any, RenderableType]:
    run = resolve_run(options.run, options.outputs)
    output = options.output or run / "report.html"
    written = write_report(run, output, max_mb=options.max_mb).to_dict()
    return written, rendering.report_page(written)


if __name__ == "__main__":
    sys.exit(main())
