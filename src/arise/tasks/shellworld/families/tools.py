"""Families solved with a project script: units, reports, renaming, export, packing, publishing."""

from __future__ import annotations

import random
from collections.abc import Callable

from arise.tasks.shellworld.families.base import Builder, Family, Needs, need_sets, phrase, text
from arise.tasks.shellworld.families.scripts import Script, add_script
from arise.tasks.shellworld.spec import Draft, Plan

SCRIPTS = {
    script.name: script
    for script in (
        Script(
            name="convert",
            labels=("unit", "rate", "date"),
            plain="2",
            line="$((line * mark))",
            numeric=True,
        ),
        Script(
            name="report",
            labels=("title", "author", "month"),
            plain="plain",
            line="$mark: $line",
        ),
        Script(
            name="rename",
            labels=("prefix", "owner", "team"),
            plain="old",
            line="$mark.$line",
        ),
        Script(
            name="export",
            labels=("group", "sheet", "region"),
            plain="all",
            line="$line,$mark",
        ),
        Script(
            name="pack",
            labels=("label", "volume", "size"),
            plain="box",
            line="$mark $line",
        ),
        Script(
            name="publish",
            labels=("theme", "channel", "site"),
            plain="page",
            line="$line $mark",
        ),
        Script(
            name="encode",
            labels=("cipher", "salt", "version"),
            plain="raw",
            line="$line-$mark",
        ),
        Script(
            name="deploy",
            labels=("stage", "zone", "branch"),
            plain="test",
            line="$mark/$line",
        ),
    )
}

_REQUESTS = (
    "Use {tool}.sh to make {b}.txt from {a}.txt.",
    "Make {b}.txt from {a}.txt with {tool}.sh.",
    "With {tool}.sh turn {a}.txt into {b}.txt.",
)


def data_lines(build: Builder, script: Script) -> list[str]:
    """Input for a script: different numbers, or names."""
    if script.numeric:
        return [str(number) for number in build.rng.sample(range(11, 60), 2)]
    return build.lines(2)


def tool_family(name: str) -> Callable[[random.Random, Needs], Draft]:
    """The generator of a script's family: `sh NAME.sh A B [WORD ...]`."""

    def make(rng: random.Random, needs: Needs) -> Draft:
        script = SCRIPTS[name]
        build = Builder(rng, needs)
        a, b = build.names.many(2)
        lines = data_lines(build, script)
        build.files[f"{a}.txt"] = text(lines)
        words = add_script(build, script)
        build.expected[f"{b}.txt"] = text(script.output(lines, words.mark))
        build.closing()
        return build.draft(
            phrase(rng, _REQUESTS, {"a": a, "b": b, "tool": name}),
            Plan,
            command=f"sh {name}.sh SOURCE {b}.txtEXTRA",
            source=f"{a}.txt",
            check=f"cat {b}.txt",
            rule=words.rule,
            heed=words.heed,
            verify=words.verify,
        )

    return make


def _family(
    name: str, script: str, domain: str, tags: str, mixed: str, single: str, unseen: bool = False
) -> Family:
    return Family(
        name=name,
        domain=domain,
        tags=tuple(tags.split()),
        make=tool_family(script),
        mixed=need_sets(mixed),
        single=need_sets(single),
        unseen=unseen,
    )


_READS = "RH RV RHV RHF RVF"
_ANY = "- F RH RV HV RHV RHF HVF"

FAMILIES = (
    _family("convert_units", "convert", "data", "unit-conversion arithmetic tools", _READS, "R"),
    _family("format_report", "report", "text", "reporting formatting tools", _READS, "R"),
    _family("rename_rule", "rename", "system", "renaming formatting tools", _READS, "R"),
    _family("export_table", "export", "data", "csv exporting tools", _ANY, "- R H V F"),
    _family("pack_files", "pack", "system", "archiving tools", _ANY, "- R H V F"),
    _family("publish_page", "publish", "text", "publishing tools", "HV HVF RHV", "H V"),
    _family("encode_text", "encode", "text", "encoding tools", _ANY, "- R H V F", unseen=True),
    _family("deploy_site", "deploy", "system", "deployment tools", _ANY, "- R H V F", unseen=True),
)
