"""Families that begin with a failing command, and one of several steps."""

from __future__ import annotations

import random

from arise.tasks.shellworld.families.base import (
    HEED,
    VERIFY,
    Builder,
    Family,
    Needs,
    need_sets,
    phrase,
    text,
)
from arise.tasks.shellworld.families.scripts import Script, add_script
from arise.tasks.shellworld.families.tools import SCRIPTS
from arise.tasks.shellworld.spec import Draft, Fix, Plan

_ADD = ("add {word} too", "take {word} as well", "{word} belongs to it too", "also use {word}")
_MOVED = ("moved to {word}", "now in {word}", "it is in {word}")
_BUGS = ("bad mode={wrong}, want {right}", "mode={wrong} is wrong, use {right}")
_RUN = Script(name="run", labels=("style", "mode", "level"), plain="basic", line="$mark $line")


def missing_input(rng: random.Random, needs: Needs) -> Draft:
    """`sort A > B`, where A was renamed: the folder's listing shows the new name."""
    build = Builder(rng, needs)
    a, b, c, d = build.names.many(4)
    renamed = f"{a}.{rng.choice(('old', 'bak', 'new', 'orig'))}" if HEED in needs else f"{a}.txt"
    # Never in order already: `cat` must not pass for `sort`.
    lines = sorted(build.lines(2), reverse=True)
    verify = None
    build.files[renamed] = text(lines)
    if VERIFY in needs:
        place = f"{d}.txt"
        build.files[renamed] = rng.choice(_MOVED).format(word=place) + "\n"
        build.files[place] = text(lines)
        verify = Fix(word=place, source=place)
    rule = build.rule(_ADD, f"{c}.txt")
    if rule:
        more = build.lines(1)
        build.files[rule] = text(more)
        lines += more
    build.expected[f"{b}.txt"] = text(sorted(lines))
    build.closing()
    request = phrase(
        rng,
        ("Sort {a}.txt into {b}.txt.", "Write the sorted lines of {a}.txt to {b}.txt."),
        {"a": a, "b": b},
    )
    return build.draft(
        request,
        Plan,
        command=f"sort SOURCEEXTRA > {b}.txt",
        source=f"{a}.txt",
        check=f"cat {b}.txt",
        rule=rule,
        heed=Fix(word=renamed, probes=("ls",), source=renamed) if HEED in needs else None,
        verify=verify,
    )


def fix_script(rng: random.Random, needs: Needs) -> Draft:
    """`sh run.sh A B` fails on one wrong word in the script, which its error names."""
    build = Builder(rng, needs)
    a, b = build.names.many(2)
    lines = build.lines(2)
    build.files[f"{a}.txt"] = text(lines)
    words = add_script(build, _RUN, failing=False)
    heed = None
    if HEED in needs:
        wrong, right = build.names.many(2)
        message = rng.choice(_BUGS).format(wrong="$mode", right=right)
        check = f'mode={wrong}\n[ $mode = {right} ] || {{ echo "{message}" >&2; exit 3; }}\n'
        build.files["run.sh"] = check + build.files["run.sh"]
        heed = Fix(word=right, probes=(f"sed -i s/mode={wrong}/mode={right}/ run.sh",))
    build.expected[f"{b}.txt"] = text(_RUN.output(lines, words.mark))
    build.closing()
    request = phrase(
        rng,
        (
            "Repair run.sh if it is broken and make {b}.txt from {a}.txt with it.",
            "Make {b}.txt from {a}.txt with run.sh, which may be broken.",
        ),
        {"a": a, "b": b},
    )
    return build.draft(
        request,
        Plan,
        command=f"sh run.sh SOURCE {b}.txtEXTRA",
        source=f"{a}.txt",
        check=f"cat {b}.txt",
        rule=words.rule,
        heed=heed,
        verify=words.verify,
    )


def pipeline(rng: random.Random, needs: Needs) -> Draft:
    """`sort -u A > B`, then a script from B to C."""
    build = Builder(rng, needs)
    a, b, c = build.names.many(3)
    script = SCRIPTS[rng.choice(("report", "export", "pack"))]
    lines = build.lines(2)
    shuffled = [*lines, lines[0]]
    rng.shuffle(shuffled)
    build.files[f"{a}.txt"] = text(shuffled)
    words = add_script(build, script)
    build.expected[f"{b}.txt"] = text(sorted(lines))
    build.expected[f"{c}.txt"] = text(script.output(sorted(lines), words.mark))
    build.closing()
    request = phrase(
        rng,
        (
            "Sort {a}.txt without duplicates into {b}.txt and use {tool}.sh to make {c}.txt "
            "from {b}.txt.",
            "Write the sorted unique lines of {a}.txt to {b}.txt and with {tool}.sh turn {b}.txt "
            "into {c}.txt.",
        ),
        {"a": a, "b": b, "c": c, "tool": script.name},
    )
    return build.draft(
        request,
        Plan,
        opening=(f"sort -u {a}.txt > {b}.txt",),
        command=f"sh {script.name}.sh SOURCE {c}.txtEXTRA",
        source=f"{b}.txt",
        check=f"cat {c}.txt",
        rule=words.rule,
        heed=words.heed,
        verify=words.verify,
    )


FAMILIES = (
    Family(
        name="missing_input",
        domain="system",
        tags=("recovery", "sorting"),
        make=missing_input,
        mixed=need_sets("RH HV RHV RHF"),
        single=need_sets("H"),
    ),
    Family(
        name="fix_script",
        domain="system",
        tags=("debugging-scripts", "editing"),
        make=fix_script,
        mixed=need_sets("RH HV RHV RHF"),
        single=need_sets("H"),
    ),
    Family(
        name="pipeline",
        domain="data",
        tags=("multi-step", "sorting", "tools"),
        make=pipeline,
        mixed=need_sets("- RH RV HV"),
        single=need_sets("- R H V"),
    ),
)
