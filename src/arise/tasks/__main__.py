"""Checks and annotates corpora.

`python -m arise.tasks check FOLDER... [--oracle] [--against FOLDER]` says what is wrong with them,
`python -m arise.tasks annotate FOLDER --model M --base-url URL` gives their tasks task types.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from arise.config import instantiate_choice
from arise.errors import ConfigError
from arise.tasks.annotate import add_arguments, annotate
from arise.tasks.corpus import CorpusScan, scan_corpus
from arise.tasks.near import near_duplicates
from arise.tasks.oracle import OracleReport, run_oracles
from arise.types import Task

EXIT_PROBLEMS = 1
EXIT_USAGE = 2
_CONFIGS = Path(__file__).parents[3] / "configs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: no problem found. 1: broken tasks, a bad oracle or near-duplicates. 2: wrong usage.
    """
    parser = argparse.ArgumentParser(prog="python -m arise.tasks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="list every task of a corpus and what is wrong")
    check.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    check.add_argument(
        "--oracle",
        action="store_true",
        help="run every reference solution and the no-op, and report rewards that are not 1 and 0",
    )
    check.add_argument(
        "--environment",
        default="auto",
        choices=("auto", "bubblewrap", "docker"),
        help="kind of sandbox for --oracle, with the settings of configs/environment (%(default)s)",
    )
    check.add_argument(
        "--concurrency", type=int, default=2, help="sandboxes at once for --oracle (%(default)s)"
    )
    check.add_argument(
        "--against", type=Path, action="append", default=[], metavar="FOLDER",
        help="report near-duplicates with the tasks of another corpus, such as a benchmark",
    )  # fmt: skip
    check.add_argument(
        "--threshold",
        type=float,
        default=0.5,
        help="share of equal five-word runs from which two tasks are near-duplicates (%(default)s)",
    )
    add_arguments(
        commands.add_parser("annotate", help="give every task its task types, by a language model")
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "annotate":
            return EXIT_PROBLEMS if annotate(options) else 0
        return _check(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _check(options: argparse.Namespace) -> int:
    if options.concurrency < 1 or not 0 < options.threshold <= 1:
        raise ConfigError("--concurrency must be at least 1, and --threshold in (0, 1]")
    scan = scan_corpus(options.folders)
    _print_table(scan)
    num_problems = len(scan.broken)
    if options.oracle:
        num_problems += asyncio.run(_run_oracles(scan.tasks, options))
    if options.against:
        num_problems += _report_duplicates(scan.tasks, options)
    return EXIT_PROBLEMS if num_problems else 0


def _print_table(scan: CorpusScan) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("task", "steps", "domain", "agent s", "tests s", "machine", "problem"):
        table.add_column(heading, overflow="fold", no_wrap=False)
    for task in scan.tasks:
        table.add_row(
            task.id,
            str(len(task.steps) or 1),
            task.domain or "-",
            "-" if task.agent_timeout_s is None else f"{task.agent_timeout_s:g}",
            f"{task.verifier_timeout_s:g}",
            _machine(task),
            task.environment.unsupported or "-",
        )
    for task_id, error in scan.broken.items():
        where = f"{error.file}{f' {error.field}' if error.field else ''}"
        table.add_row(task_id, "", "", "", "", "", f"BROKEN {where}: {error.reason}")
    # A pipe has no width; cutting what is wrong with a task would hide the point of the table.
    console = Console(width=None if sys.stdout.isatty() else 250, markup=False, highlight=False)
    console.print(table)
    console.print(f"{len(scan.tasks)} tasks, {len(scan.broken)} broken")


def _machine(task: Task) -> str:
    spec = task.environment
    parts = [
        f"{spec.cpus:g} cpus" if spec.cpus else "",
        f"{spec.memory_mb} MiB" if spec.memory_mb else "",
        f"{spec.gpus} gpus" if spec.gpus else "",
        "network" if spec.network else "",
        spec.docker_image or "",
    ]
    return ", ".join(part for part in parts if part) or "-"


async def _run_oracles(tasks: Sequence[Task], options: argparse.Namespace) -> int:
    """Print what is wrong with the oracles; returns the number of tasks with problems."""
    factory = instantiate_choice("environment", options.environment, configs=_CONFIGS)
    reports: list[OracleReport] = []
    try:
        factory.check()
        async for report in run_oracles(tasks, factory, concurrency=options.concurrency):
            reports.append(report)
            if report.skipped:
                print(f"oracle: {report.task_id}: not run: {report.skipped}", flush=True)
            for problem in report.problems:
                print(f"oracle: {report.task_id}: {problem}", flush=True)
    finally:
        factory.close()
    num_run = sum(not report.skipped for report in reports)
    num_without = sum(
        not report.skipped and report.oracle is None and not report.problems for report in reports
    )
    num_bad = sum(bool(report.problems) for report in reports)
    print(f"oracle: {num_run} tasks run, {num_without} without a solution, {num_bad} with problems")
    return num_bad


def _report_duplicates(tasks: Sequence[Task], options: argparse.Namespace) -> int:
    """Print near-duplicates; returns their number."""
    others = scan_corpus(options.against).tasks
    num = 0
    for pair in near_duplicates(tasks, others, threshold=options.threshold):
        num += 1
        print(
            f"near-duplicate: {pair.task_id} ~ {pair.other_id}: "
            f"{pair.similarity:.0%} of the {pair.part}"
        )
    print(f"near-duplicates: {num} in {len(tasks)} tasks against {len(others)}")
    return num


if __name__ == "__main__":
    sys.exit(main())
