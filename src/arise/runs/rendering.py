"""What `python -m arise.runs` prints for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from arise.runs.text import visible


def runs_table(summaries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line a run."""
    table = Table("run", "experiment", "steps", "held-out", "state", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for run in summaries:
        held_out = run["held_out_percent"]
        table.add_row(
            visible(run["path"]),
            visible(run["experiment"]),
            f"{run['steps']}/{'?' if run['max_steps'] is None else run['max_steps']}",
            "" if held_out is None else f"{held_out:.1f} % at {run['held_out_step']}",
            run["state"],
        )
    return table


def run_page(page: Mapping[str, Any]) -> RenderableType:
    """One run: how it stands, its settings, held-out results and pool."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    run = page["run"]
    table.add_row("run", visible(run["path"]))
    table.add_row("state", f"{run['state']}, {run['steps']} of {run['max_steps']} steps")
    checkpoints = ", ".join(str(entry["step"]) for entry in page["checkpoints"])
    table.add_row("checkpoints", checkpoints or "none")
    for key, value in page["settings"].items():
        table.add_row(key, visible(value))
    for result in page["held_out"]:
        table.add_row(
            f"held-out at {result['step']}", f"{result['percent']:.1f} % of {result['num_tasks']}"
        )
    if page["pool"]:
        table.add_row("pairs", ", ".join(f"{n} {kind}" for kind, n in page["pool"].items()))
    for pair in page["pairs"]:
        state = "skill on" if pair["state"] == "active" else "skill hidden"
        name = f"R{pair['pair_id']} {pair['title']} ({pair['capability']}, {state})"
        table.add_row("in the pool", visible(name))
    return table


def tasks_table(step: int, tasks: Iterable[Mapping[str, Any]]) -> RenderableType:
    """The batch of a step, and why."""
    table = _table(f"tasks of step {step}, in the order of the draw", "task", "why", "rewards")
    for task in tasks:
        rewards = " ".join("-" if r is None else f"{r:g}" for r in task["rewards"])
        table.add_row(visible(task["task_id"]), visible(task["why"]), rewards)
    return table


def trajectory_page(slot: Mapping[str, Any], why: str, titles: Mapping[int, str]) -> RenderableType:
    """One rollout: prompt, turns, outcome, verdicts and advantage."""
    head = f"step {slot['iteration'] + 1}, {slot['task_id']}/{slot['rollout']}"
    parts: list[RenderableType] = [visible(f"chosen by {why}")]
    if "failure" in slot:
        parts.append(visible(f"lost ({slot['failure']}): {slot['message']}"))
        return Panel(Group(*parts), title=visible(head), title_align="left")
    parts.append(Panel(visible(slot["instruction"]), title="instruction", title_align="left"))
    for skill in slot["skills"]:
        name = f"skill R{skill['pair_id']}, revision {skill['revision']}: "
        parts.append(Text.assemble((name, "bold"), visible(skill["text"])))
    for number, turn in enumerate(slot["turns"], start=1):
        parts.append(_turn(number, turn))
    parts.append(
        Text(
            f"{slot['finish_reason']}; reward {slot['task_reward']:g}, shaped "
            f"{slot['shaped_reward']:g}, advantage {slot['advantage']:+.4f}, "
            f"{slot['num_generated_tokens']} generated tokens",
            style="bold",
        )
    )
    review = slot.get("review")
    if review is not None:
        parts += _review(review, titles)
    return Panel(Group(*parts), title=visible(head), title_align="left")


def _turn(number: int, turn: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [Text.assemble((f"[{number}] ", "bold"), visible(turn["text"]))]
    if turn["action"] is not None and turn["action"] != turn["text"]:
        parts.append(Text.assemble(("    $ ", "bold"), visible(turn["action"])))
    if turn["exit_code"]:
        parts.append(Text(f"    exit {turn['exit_code']}", style="red"))
    if turn["observation"]:
        parts.append(Padding(visible(turn["observation"]), (0, 0, 0, 4), style="dim"))
    return Group(*parts)


def _review(review: Mapping[str, Any], titles: Mapping[int, str]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    verdicts = {verdict["pair_id"]: verdict for verdict in review["verdicts"]}
    table = _table("verdicts", "pair", "verdict", "reason")
    for pair_id in review["judged_pair_ids"]:
        verdict = verdicts.get(pair_id, {"outcome": "invalid", "reason": "the judge gave none"})
        name = f"R{pair_id} {titles.get(pair_id, '')}"
        table.add_row(visible(name), verdict["outcome"], visible(verdict["reason"]))
    if table.row_count:
        parts.append(table)
    table = _table("diagnostics", "kind", "covered by", "behaviour", "signal")
    for entry in review["diagnostics"]:
        covered = f"R{entry['covered_by']}" if entry["covered_by"] is not None else ""
        table.add_row(entry["kind"], covered, visible(entry["behaviour"]), visible(entry["signal"]))
    if table.row_count:
        parts.append(table)
    if review["error"]:
        parts.append(visible(f"judge: {review['error']}"))
    return parts


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.overflow = "fold"
    return table


def report_page(written: Mapping[str, Any]) -> RenderableType:
    """Where the report is, and what is in it."""
    size = f"{written['num_bytes'] / 1e6:.1f} MB"
    lines = [
        f"{written['report']}",
        f"{written['num_steps']} iterations, {written['num_trajectories']} trajectories, {size}",
    ]
    if written["num_cut"]:
        lines.append(f"{written['num_cut']} of them shortened; --max-mb sets the size to fit into")
    return Group(*map(visible, lines))


def show(page: RenderableType) -> None:
    """Print to the terminal, or plainly and 120 columns wide into a pipe."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(page)
