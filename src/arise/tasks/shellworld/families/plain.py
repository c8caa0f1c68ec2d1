"""Families solved with standard tools: counting, sums, merging, configuration, moving files.

A rule adds one more file to the command. Where the output can mislead (a stub that says where the
data went), nothing fails: only a look at the written file shows it.
"""

from __future__ import annotations

import random

from arise.tasks.shellworld.families.base import (
    VERIFY,
    Builder,
    Family,
    Needs,
    need_sets,
    phrase,
    text,
)
from arise.tasks.shellworld.spec import Draft, Fix, Plan

_ADD = ("add {word} too", "take {word} as well", "{word} belongs to it too", "also use {word}")
_MOVED = ("moved to {word}", "now in {word}", "it is in {word}")


def _moved(build: Builder, name: str, content: str, extension: str) -> Fix | None:
    """Put `content` into the named file, or a stub there and `content` elsewhere."""
    if VERIFY not in build.needs:
        build.files[name] = content
        return None
    place = f"{build.names.take()}.{extension}"
    build.files[name] = build.rng.choice(_MOVED).format(word=place) + "\n"
    build.files[place] = content
    return Fix(word=place, source=place)


def count_lines(rng: random.Random, needs: Needs) -> Draft:
    """`cat A | wc -l > B`."""
    build = Builder(rng, needs)
    a, b, c = build.names.many(3)
    lines, more = build.lines(rng.randint(3, 7)), build.lines(2)
    build.files[f"{a}.txt"] = text(lines)
    rule = build.rule(_ADD, f"{c}.txt")
    if rule:
        build.files[rule] = text(more)
    build.expected[f"{b}.txt"] = f"{len(lines) + (len(more) if rule else 0)}\n"
    build.closing()
    request = phrase(
        rng,
        (
            "Count the lines of {a}.txt and write the number to {b}.txt.",
            "How many lines are in {a}.txt? Write the number to {b}.txt.",
            "Write the number of lines of {a}.txt to {b}.txt.",
        ),
        {"a": a, "b": b},
    )
    return build.draft(
        request,
        Plan,
        command=f"cat SOURCEEXTRA | wc -l > {b}.txt",
        source=f"{a}.txt",
        check=f"cat {b}.txt",
        rule=rule,
    )


def sum_column(rng: random.Random, needs: Needs) -> Draft:
    """`awk -F, '{s+=$2} END {print s}' A > B`; the columns' sums differ."""
    build = Builder(rng, needs)
    a, b, c = build.names.many(3)
    column = rng.choice((2, 3))
    rows = [(name, rng.randint(2, 9), rng.randint(11, 19)) for name in build.lines(3)]
    extra = [(name, rng.randint(2, 9), rng.randint(11, 19)) for name in build.lines(2)]
    build.files[f"{a}.csv"] = text([f"{n},{x},{y}" for n, x, y in rows])
    rule = build.rule(_ADD, f"{c}.csv")
    if rule:
        build.files[rule] = text([f"{n},{x},{y}" for n, x, y in extra])
    counted = rows + (extra if rule else [])
    total = sum((second, third)[column - 2] for _, second, third in counted)
    build.expected[f"{b}.txt"] = f"{total}\n"
    build.closing()
    request = phrase(
        rng,
        (
            "Add up column {k} of {a}.csv and write the sum to {b}.txt.",
            "Write the sum of column {k} of {a}.csv to {b}.txt.",
        ),
        {"a": a, "b": b, "k": str(column)},
    )
    return build.draft(
        request,
        Plan,
        command=f"awk -F, '{{s+=${column}}} END {{print s}}' SOURCEEXTRA > {b}.txt",
        source=f"{a}.csv",
        check=f"cat {b}.txt",
        rule=rule,
    )


def sort_dedup(rng: random.Random, needs: Needs) -> Draft:
    """`sort -u A > B`."""
    build = Builder(rng, needs)
    a, b, c = build.names.many(3)
    lines = build.lines(3)
    shuffled = [*lines, lines[0]]
    rng.shuffle(shuffled)
    verify = _moved(build, f"{a}.txt", text(shuffled), "txt")
    rule = build.rule(_ADD, f"{c}.txt")
    if rule:
        more = build.lines(1)
        build.files[rule] = text([*more, lines[1]])
        lines += more
    build.expected[f"{b}.txt"] = text(sorted(lines))
    build.closing()
    request = phrase(
        rng,
        (
            "Sort {a}.txt without duplicates into {b}.txt.",
            "Write the sorted unique lines of {a}.txt to {b}.txt.",
        ),
        {"a": a, "b": b},
    )
    return build.draft(
        request,
        Plan,
        command=f"sort -u SOURCEEXTRA > {b}.txt",
        source=f"{a}.txt",
        check=f"cat {b}.txt",
        rule=rule,
        verify=verify,
    )


def merge_files(rng: random.Random, needs: Needs) -> Draft:
    """`cat A B > C`."""
    build = Builder(rng, needs)
    a, b, c, d = build.names.many(4)
    first, second, third = (text(build.lines(1)) for _ in range(3))
    verify = _moved(build, f"{a}.txt", first, "txt")
    build.files[f"{b}.txt"] = second
    rule = build.rule(_ADD, f"{d}.txt")
    if rule:
        build.files[rule] = third
    build.expected[f"{c}.txt"] = first + second + (third if rule else "")
    build.closing()
    request = phrase(
        rng,
        (
            "Merge {a}.txt and {b}.txt into {c}.txt.",
            "Join {a}.txt and {b}.txt to make {c}.txt.",
        ),
        {"a": a, "b": b, "c": c},
    )
    return build.draft(
        request,
        Plan,
        command=f"cat SOURCE {b}.txtEXTRA > {c}.txt",
        source=f"{a}.txt",
        check=f"cat {c}.txt",
        rule=rule,
        verify=verify,
    )


def set_config(rng: random.Random, needs: Needs) -> Draft:
    """`sed -i s/KEY=.*/KEY=VALUE/ A`; sed does not fail where the key is not."""
    build = Builder(rng, needs)
    a, b, value, old, other, kept = build.names.many(6)
    key, second = rng.sample(("port", "host", "mode", "user", "path"), 2)
    before = f"{key}={old}\n{second}={kept}\n"
    verify = _moved(build, f"{a}.conf", before, "conf")
    place = verify.source if verify else f"{a}.conf"
    build.expected[place] = f"{key}={value}\n{second}={kept}\n"
    rule = build.rule(_ADD, f"{b}.conf")
    if rule:
        build.files[rule] = f"{key}={other}\n"
        build.expected[rule] = f"{key}={value}\n"
    build.closing()
    request = phrase(
        rng,
        (
            "Set {key} in {a}.conf to {value}.",
            "In {a}.conf change {key} to {value}.",
        ),
        {"a": a, "key": key, "value": value},
    )
    return build.draft(
        request,
        Plan,
        command=f"sed -i s/{key}=.*/{key}={value}/ SOURCEEXTRA",
        source=f"{a}.conf",
        check=f"cat {a}.conf",
        rule=rule,
        verify=verify,
    )


def move_files(rng: random.Random, needs: Needs) -> Draft:
    """`mv A B DIR`."""
    build = Builder(rng, needs)
    a, b, c, folder = build.names.many(4)
    rule = build.rule(_ADD, f"{c}.txt")
    moved = [f"{a}.txt", f"{b}.txt", *([rule] if rule else [])]
    for name in moved:
        content = text(build.lines(1))
        build.files[name] = content
        build.expected[f"{folder}/{name}"] = content
    build.files[f"{folder}/{build.names.take()}.txt"] = text(build.lines(1))
    build.gone = tuple(moved)
    build.closing()
    request = phrase(
        rng,
        (
            "Move {a}.txt and {b}.txt to the folder {folder}.",
            "Put {a}.txt and {b}.txt into the folder {folder}.",
        ),
        {"a": a, "b": b, "folder": folder},
    )
    return build.draft(
        request,
        Plan,
        command=f"mv SOURCE {b}.txtEXTRA {folder}",
        source=f"{a}.txt",
        check=f"ls {folder}",
        rule=rule,
    )


FAMILIES = (
    Family(
        name="count_lines",
        domain="text",
        tags=("counting", "text-processing"),
        make=count_lines,
        mixed=need_sets("- F RF"),
        single=need_sets("- R F"),
    ),
    Family(
        name="sum_column",
        domain="data",
        tags=("arithmetic", "csv"),
        make=sum_column,
        mixed=need_sets("- F RF"),
        single=need_sets("- R F"),
    ),
    Family(
        name="sort_dedup",
        domain="text",
        tags=("sorting", "text-processing"),
        make=sort_dedup,
        mixed=need_sets("RV RVF"),
        single=need_sets("V"),
    ),
    Family(
        name="merge_files",
        domain="text",
        tags=("merging", "file-management"),
        make=merge_files,
        mixed=need_sets("RV RVF"),
        single=need_sets("R"),
    ),
    Family(
        name="set_config",
        domain="system",
        tags=("configuration", "editing"),
        make=set_config,
        mixed=need_sets("RV RVF"),
        single=need_sets("V"),
    ),
    Family(
        name="move_files",
        domain="system",
        tags=("file-management",),
        make=move_files,
        mixed=need_sets("- F RF"),
        single=need_sets("- R F"),
    ),
)
