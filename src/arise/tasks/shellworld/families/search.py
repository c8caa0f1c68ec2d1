"""Families that select lines by content; a selected line may point to more of them."""

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
_MORE = ("more in {place}", "rest in {place}", "the rest is in {place}")


def _hits(
    build: Builder, word: str, separator: str, extension: str
) -> tuple[list[str], Fix | None]:
    """Lines that hold `word`, the last of which may point to a file with one more."""
    hits = [f"{word}{separator}{name}" for name in build.lines(1)]
    if VERIFY not in build.needs:
        return hits, None
    place = f"{build.names.take()}.{extension}"
    build.files[place] = f"{word}{separator}{build.names.take()}\n"
    hits.append(f"{word}{separator}{build.rng.choice(_MORE).format(place=place)}")
    return hits, Fix(word=place, extra=place)


def _result(build: Builder, hits: list[str], word: str, rule: str, verify: Fix | None) -> str:
    """Expected output: hits of the first file, of the rule's file, of the pointed-to file."""
    found = list(hits)
    for name in (rule, verify.extra if verify else ""):
        if name:
            found += [line for line in build.files[name].splitlines() if word in line]
    return text(found)


def filter_rows(rng: random.Random, needs: Needs) -> Draft:
    """`grep -h WORD A > B` on rows of a table."""
    build = Builder(rng, needs)
    a, b, c, word = build.names.many(4)
    hits, verify = _hits(build, word, ",", "csv")
    build.files[f"{a}.csv"] = text([",".join(build.names.many(2)), *hits])
    rule = build.rule(_ADD, f"{c}.csv")
    if rule:
        build.files[rule] = text([",".join(build.names.many(2)), f"{word},{build.names.take()}"])
    build.expected[f"{b}.csv"] = _result(build, hits, word, rule, verify)
    build.closing()
    request = phrase(
        rng,
        (
            "Write the rows of {a}.csv with {word} to {b}.csv.",
            "Keep only the rows of {a}.csv with {word}, in {b}.csv.",
        ),
        {"a": a, "b": b, "word": word},
    )
    return build.draft(
        request,
        Plan,
        command=f"grep -h {word} SOURCEEXTRA > {b}.csv",
        source=f"{a}.csv",
        check=f"cat {b}.csv",
        rule=rule,
        verify=verify,
    )


def find_lines(rng: random.Random, needs: Needs) -> Draft:
    """`grep -h WORD *.txt > B`: which file holds the word is not told."""
    build = Builder(rng, needs)
    b, c, word = build.names.many(3)
    hits, verify = _hits(build, word, " ", "dat")
    holder, other = (f"{name}.txt" for name in build.names.many(2))
    build.files[holder] = text([build.names.take(), *hits])
    build.files[other] = text(build.lines(2))
    rule = build.rule(_ADD, f"{c}.dat")
    if rule:
        build.files[rule] = text([f"{word} {build.names.take()}", build.names.take()])
    build.expected[f"{b}.out"] = _result(build, hits, word, rule, verify)
    build.closing()
    request = phrase(
        rng,
        (
            "Find the lines with {word} in all txt files and write them to {b}.out.",
            "Search all txt files for {word} and write the lines to {b}.out.",
        ),
        {"b": b, "word": word},
    )
    return build.draft(
        request,
        Plan,
        command=f"grep -h {word} SOURCEEXTRA > {b}.out",
        source="*.txt",
        check=f"cat {b}.out",
        rule=rule,
        verify=verify,
    )


FAMILIES = (
    Family(
        name="filter_rows",
        domain="data",
        tags=("csv", "searching"),
        make=filter_rows,
        mixed=need_sets("- RV RVF"),
        single=need_sets("- R V"),
    ),
    Family(
        name="find_lines",
        domain="text",
        tags=("searching", "file-management"),
        make=find_lines,
        mixed=need_sets("RV RVF RF"),
        single=need_sets("R"),
    ),
)
