"""Annotates a corpus: resumable, with a progress bar and a summary."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from arise.errors import ConfigError, JudgeError, one_line
from arise.llm.budget import CallBudget
from arise.llm.chat import ChatModel
from arise.llm.openai_client import OpenAIChatModel
from arise.llm.usage import TokenPrices
from arise.rubrics.prompting import Prompts
from arise.tasks.annotation import Annotator, task_hash
from arise.tasks.corpus import scan_corpus
from arise.tasks.tags import Record, line, read_tags, to_record, write_tags
from arise.tasks.taxonomy import BUILT_IN, Taxonomy, read_taxonomy
from arise.types import Task


@dataclass(slots=True)
class AnnotationRun:
    """What came of annotating a corpus.

    Attributes:
        records: Lines of `tags.jsonl` by task id, those of earlier runs included.
        failed: Why a task could not be annotated, by id; the next run tries again.
        num_kept: Lines of an earlier run that still hold.
        num_calls: Calls to the endpoint.
    """

    records: dict[str, Record] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    num_kept: int = 0
    num_calls: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m arise.tasks annotate`."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--model", required=True, help="model name at the endpoint")
    parser.add_argument(
        "--base-url", required=True, help="OpenAI-compatible endpoint, up to and including /v1"
    )
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="environment variable with the endpoint's key; left out: it needs none",
    )
    parser.add_argument(
        "--out", type=Path, help="file to write and to go on with (FOLDER/tags.jsonl)"
    )
    parser.add_argument(
        "--taxonomy", type=Path, default=BUILT_IN, help="registry of task types (the built-in one)"
    )
    parser.add_argument("--prompts", type=Path, help="folder with the prompt files (built-in)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at once (%(default)s)")
    parser.add_argument("--max-tokens", type=int, help="longest answer, in tokens")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds for one try (%(default)s)"
    )
    parser.add_argument(
        "--max-calls", type=int, help="most calls to the endpoint, retries included"
    )
    parser.add_argument(
        "--prices", type=float, nargs=2, metavar=("IN", "OUT"),
        help="per million tokens sent and answered, for the summary",
    )  # fmt: skip


def annotate(options: argparse.Namespace) -> int:
    """Annotate as the command line says; returns the number of tasks that could not be.

    Raises:
        ConfigError: The corpus, the registry, the endpoint or the output cannot be used.
    """
    if options.max_calls is not None and options.max_calls < 1:
        raise ConfigError(f"--max-calls must be at least 1, got {options.max_calls}")
    scan = scan_corpus(options.folders)
    taxonomy = read_taxonomy(options.taxonomy)
    out = options.out or options.folders[0] / "tags.jsonl"
    model = OpenAIChatModel(
        model=options.model,
        base_url=options.base_url,
        api_key_env=options.api_key_env,
        temperature=0.0,
        max_tokens=options.max_tokens,
        timeout_s=options.timeout,
        max_tries=4,
        max_concurrency=options.concurrency,
        backoff_s=1.0,
        max_wait_s=60.0,
        config_key="annotate",
    )
    annotator = Annotator(
        model=model,
        prompts=Prompts(directory=options.prompts),
        taxonomy=taxonomy,
        budget=CallBudget(options.max_calls),
    )
    run = asyncio.run(_run(annotator, model, scan.tasks, out, options.concurrency))
    names = ("prompt", "completion")
    prices = dict(zip(names, options.prices, strict=True)) if options.prices else {}
    summary = summarize(scan.tasks, run, taxonomy, TokenPrices.from_config(prices, key="--prices"))
    summary_path = out.with_name(f"{out.stem}_summary.json")
    summary_path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    _show(summary, run, out, summary_path)
    return len(run.failed)


async def _run(
    annotator: Annotator, model: ChatModel, tasks: Sequence[Task], out: Path, concurrency: int
) -> AnnotationRun:
    await model.start()
    try:
        return await annotate_tasks(annotator, tasks, out, concurrency=concurrency)
    finally:
        await model.stop()


async def annotate_tasks(
    annotator: Annotator, tasks: Sequence[Task], out: Path, *, concurrency: int
) -> AnnotationRun:
    """Annotate the tasks that a file has no valid line for, and write them to it.

    Each annotation is in the file as soon as it is there; a line holds while what the annotator
    sees of the task, prompt, registry and model are the same. At the end the file is sorted.

    Args:
        annotator: Asks the model.
        tasks: The corpus.
        out: The file.
        concurrency: Tasks at once.
    """
    run = AnnotationRun()
    known = read_tags(out, ignore_cut_off=True) if out.is_file() else {}
    for task in tasks:
        record = known.get(task.id, {})
        holds = {"task_hash": task_hash(task), **annotator.origin}
        if all(record.get(key) == value for key, value in holds.items()):
            run.records[task.id] = record
    run.num_kept = len(run.records)
    write_tags(out, run.records.values())
    waiting = iter([task for task in tasks if task.id not in run.records])
    console = Console(stderr=True)
    columns = (
        TextColumn("annotating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[failed]} failed"),
    )  # fmt: skip
    with out.open("a", encoding="utf-8") as file, Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(tasks), completed=run.num_kept, failed=0)

        async def work() -> None:
            for task in waiting:
                await _annotate_one(annotator, task, run, file)
                progress.update(bar, advance=1, failed=len(run.failed))

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    write_tags(out, run.records.values())
    run.num_calls = annotator.num_calls
    return run


async def _annotate_one(annotator: Annotator, task: Task, run: AnnotationRun, file: TextIO) -> None:
    try:
        record = to_record(await annotator.annotate(task))
    except JudgeError as error:
        run.failed[task.id] = one_line(error)
        return
    run.records[task.id] = record
    file.write(line(record))
    file.flush()


def summarize(
    tasks: Sequence[Task], run: AnnotationRun, taxonomy: Taxonomy, prices: TokenPrices | None
) -> dict[str, Any]:
    """The annotations in numbers.

    Args:
        tasks: The corpus.
        run: What came of annotating it.
        taxonomy: The registry.
        prices: For the cost; `None` leaves it out.
    """
    records = list(run.records.values())
    counts = Counter(tag for record in records for tag in record["tags"])
    prompt, completion = (
        sum(int(record[key]) for record in records)
        for key in ("prompt_tokens", "completion_tokens")
    )
    summary: dict[str, Any] = {
        "tasks": len(tasks),
        "annotated": len(records),
        "kept_from_earlier_runs": run.num_kept,
        "failed": len(run.failed),
        "untagged": sum(not record["tags"] for record in records),
        "with_several_tags": sum(len(record["tags"]) > 1 for record in records),
        "second_passes": sum(record["num_passes"] == 2 for record in records),
        "invented_names": sum(len(record["unknown"]) for record in records),
        "task_types_used": len(counts),
        "task_types": {name: counts[name] for name in taxonomy.names if counts[name]},
        "unused": [name for name in taxonomy.names if not counts[name]],
        "by_domain": _by_domain(tasks, run.records),
        "calls": run.num_calls,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
    }
    if prices is not None:
        summary["cost"] = prices.cost(prompt, completion)
    return summary


def _by_domain(tasks: Iterable[Task], records: Mapping[str, Record]) -> dict[str, int]:
    """Annotated tasks by the domain that their manifests name."""
    found = Counter(task.domain or "(none)" for task in tasks if task.id in records)
    return dict(sorted(found.items()))


def _show(summary: Mapping[str, Any], run: AnnotationRun, out: Path, summary_path: Path) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("task type")
    table.add_column("tasks", justify="right")
    for name, count in sorted(summary["task_types"].items(), key=lambda entry: -entry[1]):
        table.add_row(name, str(count))
    console.print(table)
    for task_id, reason in sorted(run.failed.items()):
        console.print(f"failed: {task_id}: {reason}")
    cost = f", cost {summary['cost']:.4g}" if "cost" in summary else ""
    console.print(
        f"{summary['annotated']} of {summary['tasks']} tasks annotated "
        f"({summary['kept_from_earlier_runs']} by earlier runs, {summary['failed']} failed), "
        f"{summary['untagged']} without a type, {summary['with_several_tags']} with several, "
        f"{summary['task_types_used']} types used; {summary['calls']} calls, "
        f"{summary['prompt_tokens']} + {summary['completion_tokens']} tokens{cost}"
    )
    console.print(f"written: {out}, {summary_path}; train with datamodule.tags={out}")
