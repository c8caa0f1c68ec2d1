"""The pool's life on one page: p̂ of every pair at every update, then why each thing happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from arise.runs.text import visible

_MARKS = {"activated": "+", "refined": "~", "hidden": "-", "retired": "x"}
_LEGEND = "p̂ in % at each update; + skill switched on, ~ refined, - hidden again, x pair retired"
_STYLES = {"active": "green", "hidden": "", "retired": "dim"}
_WORDS = {"active": "on", "hidden": "hidden", "retired": "retired"}
_SPEAKS = {"issues": "gap", "contrasts": "strategy"}
_MAX_TYPES = 4
_UPDATE_WIDTH = 6


class PoolOverview:
    """A table that rich prints: a row for each pair, a column for each update that has room.

    Args:
        pairs: Stories of `pool_story`.
    """

    def __init__(self, pairs: Sequence[Mapping[str, Any]]) -> None:
        self._pairs = pairs
        self._steps = sorted({event["step"] for pair in pairs for event in pair["events"]})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The newest updates, as many as the terminal is wide."""
        title_width = min(40, max(16, options.max_width // 3))
        room = (options.max_width - title_width - 26) // _UPDATE_WIDTH
        steps = self._steps[-max(2, room) :]
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("pair", width=title_width, no_wrap=True, overflow="ellipsis")
        table.add_column("capability", no_wrap=True)
        for step in steps:
            table.add_column(str(step), justify="right", no_wrap=True, min_width=4)
        table.add_column("skill", no_wrap=True)
        for pair in self._pairs:
            cells = {event["step"]: _cell(event) for event in pair["events"]}
            style = _STYLES[pair["state"]]
            table.add_row(
                Text.assemble(f"R{pair['pair_id']} ", visible(pair["title"])),
                pair["capability"],
                *(cells.get(step, "") for step in steps),
                _WORDS[pair["state"]],
                style=style,
            )
        yield table
        left_out = len(self._steps) - len(steps)
        earlier = f"; {left_out} earlier updates are left out" if left_out else ""
        yield Text(_LEGEND + earlier, style="dim")


def _cell(event: Mapping[str, Any]) -> str:
    if event["type"] in ("created", "imported"):
        return "new "
    if event["pass_rate"] is None:
        return "? "
    return f"{100 * event['pass_rate']:.0f}{_MARKS.get(event['type'], ' ')}"


def pair_page(pair: Mapping[str, Any], *, in_full: bool) -> RenderableType:
    """One pair: rubric, skill, and its decisions with their reasons and evidence.

    Args:
        pair: A story of `pool_story`.
        in_full: Every update, every task and every cited record; else what changed the pair, with
            the task types that speak loudest and one quotation.
    """
    head = Text.assemble(
        (f"R{pair['pair_id']} ", "bold"),
        visible(pair["title"]),
        (f"  {pair['capability']}, {_WORDS[pair['state']]}", "dim"),
    )
    head.stylize("bold", 0, len(f"R{pair['pair_id']} {pair['title']}"))
    rubric = pair["rubric"]
    texts = _grid(
        ("applies", rubric["applicability"]),
        ("fail", rubric["fail_condition"]),
        ("pass", rubric["pass_condition"]),
        ("skill", pair["skill"]),
    )
    parts: list[RenderableType] = [Text(""), head, Padding(texts, (0, 0, 0, 2))]
    for event in pair["events"]:
        if in_full or not _changes_nothing(event):
            why = Text.assemble((f"step {event['step']} {event['type']}: ", "bold"))
            parts.append(Padding(why.append_text(visible(event["why"])), (0, 0, 0, 2)))
            lines = _grid(*_evidence(event, in_full=in_full))
            parts.append(Padding(lines, (0, 0, 0, 6)))
    return Group(*parts)


def _changes_nothing(event: Mapping[str, Any]) -> bool:
    quiet = ("between_bounds", "no_applicable_verdict")
    return event["type"] == "kept" and event["reason"] in quiet


def _grid(*rows: tuple[str, str]) -> Table:
    """Labels on the left, texts that fold on the right."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, visible(text))
    return table


def _evidence(event: Mapping[str, Any], *, in_full: bool) -> list[tuple[str, str]]:
    evidence = event["evidence"]
    rows: list[tuple[str, str]] = []
    if event["type"] == "refined":
        rows += [("old skill", event["old_text"]), ("new skill", event["text"])]
    if evidence.get("tags"):
        rows.append(("by type", _by_type(evidence, in_full=in_full)))
    if in_full and evidence.get("tasks"):
        rows.append(("by task", "; ".join(map(_counts, evidence["tasks"].items()))))
    reasons = evidence.get("reasons", ())
    for reason in reasons if in_full else reasons[:1]:
        rows.append((evidence["outcome"], f"{_place(reason)}: {reason['reason']}"))
    for side, kind in _SPEAKS.items():
        records = evidence.get(side, ())
        shown = records if in_full else records[:1]
        for number, record in enumerate(shown, start=1):
            more = len(records) - number if number == len(shown) else 0
            rest = f" (and {more} more)" if more else ""
            rows.append((side[:-1], f"{_place(record)}: {_findings(record, kind)}{rest}"))
    return rows


def _by_type(evidence: Mapping[str, Any], *, in_full: bool) -> str:
    """Pass rates by task type; those with most verdicts of the deciding outcome first."""
    rates = []
    for tag, counts in evidence["tags"].items():
        num_passes = counts.get("pass", 0)
        num_applicable = num_passes + counts.get("fail", 0)
        if num_applicable:
            weight = counts.get(evidence["outcome"] or "fail", 0)
            rates.append((-weight, tag, f"{num_passes / num_applicable:.0%} of {num_applicable}"))
    rates.sort()
    shown = rates if in_full else rates[:_MAX_TYPES]
    words = [f"{tag} {rate}" for _, tag, rate in shown]
    if len(shown) < len(rates):
        words.append(f"and {len(rates) - len(shown)} more")
    return ", ".join(words)


def _counts(entry: tuple[str, Mapping[str, int]]) -> str:
    """Example: `sort-logs 3 fail, 4 n/a, 1 pass`."""
    task, outcomes = entry
    words = {"not_applicable": "n/a"}
    counts = (f"{n} {words.get(name, name)}" for name, n in sorted(outcomes.items()))
    return f"{task} {', '.join(counts)}"


def _findings(record: Mapping[str, Any], kind: str) -> str:
    """What a cited record shows: gaps for an issue, strategies for a contrast, else all of it."""
    found = record["diagnostics"]
    fitting = [entry["behaviour"] for entry in found if entry["kind"] == kind]
    return "; ".join(fitting or [entry["behaviour"] for entry in found]) or "not recorded"


def _place(record: Mapping[str, Any]) -> str:
    return f"step {record['step']} {record['task_id']}/{record['rollout']}"
