"""The suite in the product's own sandbox: solutions score 1, everything else 0."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from arise.environments.bubblewrap import BubblewrapFactory
from arise.environments.verifier import verify
from arise.tasks.corpus import load_corpus
from arise.tasks.shellworld.folder import write
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.spec import Need, TaskSpec
from arise.types import Task

# Typical slips: what to replace in the main command, and by what.
SLIPS: dict[str, tuple[tuple[str, str], ...]] = {
    "count_lines": ((r"\| wc -l", "| wc -w -l"), (r"cat (\S+)", r"cat \1 \1")),
    "sum_column": ((r"\$2", "$9"), (r"\$3", "$1"), (r"\$2", "$3"), (r"\$3", "$2")),
    "sort_dedup": ((r"sort -u", "sort"), (r"sort -u", "cat")),
    "merge_files": ((r"cat (\S+) (\S+)", r"cat \2 \1"), (r"cat (\S+) (\S+)", r"cat \1")),
    "set_config": ((r"=\.\*/", "/"), (r"sed -i s/(\w+)=\S*/ (\S+).*", r"echo \1=x > \2")),
    "move_files": ((r"mv", "cp"), (r"mv (\S+) (\S+)", r"mv \1")),
    "filter_rows": ((r"grep -h", "grep -c"), (r"grep -h", "grep -v"), (r"grep -h \S+", "cat")),
    "find_lines": ((r"grep -h", "grep -H"), (r"grep -h", "grep -l"), (r"grep -h \S+", "cat")),
    "missing_input": ((r"sort", "cat"), (r"sort (\S+)", r"sort \1 \1")),
    "": ((r"sh \S+ (\S+) (\S+).*", r"cp \1 \2"), (r"(sh \S+) (\S+) (\S+)", r"\1 \3 \2")),
}


def specs() -> list[TaskSpec]:
    """One task for every family and set of needs of the default mix."""
    found: dict[tuple[str, frozenset[Need]], TaskSpec] = {}
    for split in ("heldout", "unseen"):
        for spec in generate_tasks(split, 700, 21):
            found.setdefault((spec.family, spec.needs), spec)
    return list(found.values())


SPECS = specs()


def wrong_answers(spec: TaskSpec) -> Iterator[Sequence[str]]:
    """Sequences of commands that must not pass."""
    yield ()
    solution = spec.plan.solution()
    main = next(command for command in reversed(solution) if command != spec.plan.closing)
    for pattern, replacement in SLIPS.get(spec.family, SLIPS[""]):
        slip = re.sub(pattern, replacement, main)
        if slip != main:
            yield [slip if command == main else command for command in solution]
    if spec.plan.closing:
        yield solution[:-1]
    yield [f"echo done > {name}" for name in spec.draft.expected]
    yield [f": > {name}" for name in spec.draft.expected]
    if spec.needs - {Need.FINISH}:
        # The main command as the instruction alone suggests it.
        naive = spec.plan.main(spec.plan.source, ())
        yield (*spec.plan.opening, naive, *([spec.plan.closing] if spec.plan.closing else []))


@pytest.fixture(scope="module")
def factory() -> Iterator[BubblewrapFactory]:
    made = BubblewrapFactory(
        sandbox_uid=65534,
        storage_mb=16,
        memory_mb=256,
        max_processes=64,
        max_output_bytes=65536,
        start_timeout_s=20.0,
    )
    yield made
    made.close()


async def score(factory: BubblewrapFactory, task: Task, commands: Sequence[str]) -> float:
    environment = factory.create(task, name=task.id)
    try:
        await environment.start()
        for command in commands:
            await environment.exec(command, timeout_s=10.0)
        return await verify(environment, task)
    finally:
        await environment.stop()


async def scores(
    factory: BubblewrapFactory, jobs: Sequence[tuple[Task, Sequence[str]]]
) -> list[float]:
    slots = asyncio.Semaphore(8)

    async def limited(task: Task, commands: Sequence[str]) -> float:
        async with slots:
            return await score(factory, task, commands)

    return list(await asyncio.gather(*(limited(task, commands) for task, commands in jobs)))


def test_solutions_score_one_and_wrong_answers_zero(
    factory: BubblewrapFactory, tmp_path: Path
) -> None:
    for spec in SPECS:
        write(spec, tmp_path / spec.id)
    tasks = {task.path.name: task for task in load_corpus(tmp_path)}
    jobs: list[tuple[Task, Sequence[str]]] = []
    expected: list[float] = []
    for spec in SPECS:
        solution = (tasks[spec.id].path / "solution" / "solve.sh").read_text()
        jobs.append((tasks[spec.id], [solution]))
        expected.append(1.0)
        for commands in wrong_answers(spec):
            jobs.append((tasks[spec.id], commands))
            expected.append(0.0)
    found = asyncio.run(scores(factory, jobs))
    wrong = [
        (task.id, commands, reward)
        for (task, commands), reward, right in zip(jobs, found, expected, strict=True)
        if reward != right
    ]
    assert not wrong
    assert len(SPECS) >= 60


def test_grading_is_fast(factory: BubblewrapFactory, tmp_path: Path) -> None:
    """The tests are a handful of `cmp`s; most of the time is the sandbox's."""
    write(SPECS[0], tmp_path / SPECS[0].id)
    (task,) = load_corpus(tmp_path)

    async def graded() -> float:
        environment = factory.create(task, name="timed")
        try:
            await environment.start()
            begin = time.monotonic()
            await verify(environment, task)
            return time.monotonic() - begin
        finally:
            await environment.stop()

    assert asyncio.run(graded()) < 2.0
