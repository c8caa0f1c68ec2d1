"""A folder in which every path that the documentation names as an example exists."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from arise.runs.records import read_records
from arise.tasks.shellworld.corpus import write_corpus
from documented_blocks import files
from recorded_run import RunSize, write_run
from runs import ROOT, TASKS

NUM_STEPS = 40
_RUN = "outputs/arise/2026-01-01_00-00-00"
_POOL = ROOT / "tests" / "data" / "recorded_pool.jsonl"

# What the documentation writes for what is the reader's own.
_PLACES = {
    "<run>": _RUN,
    "outputs/...": f"{_RUN}/checkpoints",
    "outputs/arise/<time>": _RUN,
    "RUN": _RUN,
    "OLD": "path/to/pool.jsonl",
    "NEW": "path/to/pool.jsonl",
    "NAME": "some-name",
    "N": "2",
}
_FOLDERS = ("path/to/tasks", "TASKS", "tasks", "tests/data/tasks")
_FILES = ("pool.jsonl", "other/pool.jsonl", "path/to/pool.jsonl", "tests/data/recorded_pool.jsonl")


def write_desk(folder: Path) -> Path:
    """Write tasks, pools, a recorded run of 40 steps, and folders for models and weights."""
    for name in _FOLDERS:
        shutil.copytree(TASKS, folder / name)
        (folder / name / "tags.jsonl").touch()
    for name in _FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_POOL, folder / name)
    for name in ("path/to/final_model", "path/to/checkpoint"):
        (folder / name).mkdir(parents=True)
    write_corpus(folder / "path/to/benchmark", split="train", count=2, seed=1, mix="single")
    for name, text in files(ROOT / "docs" / "extending.md").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_run(folder / _RUN, RunSize(steps=NUM_STEPS, tasks=2, rollouts=2, turns=2, pairs=3))
    return folder


def at_desk(words: Sequence[str], desk: Path) -> list[str]:
    """Words of a command with what the desk has in place of the reader's own."""
    records = read_records(desk / _RUN / "trajectories" / f"step_{NUM_STEPS:06d}.jsonl.gz")
    places = {**_PLACES, "some-task": next(iter(records))["task_id"]}
    found = []
    for word in words:
        if word == "...":
            continue
        if '"' in word:  # a list, which names nothing of the desk
            found.append(word)
            continue
        key, equals, value = word.rpartition("=")
        base, at, step = value.partition("@")
        for name in sorted(places, key=len, reverse=True):
            if base == name or base.startswith(f"{name}/"):
                base = places[name] + base[len(name) :]
                break
        value = f"{base}{at}{step}"
        found.append(f"{key}{equals}{'some-text' if value == '...' else value}")
    return found
