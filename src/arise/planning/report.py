"""A plan as tables in the terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from arise.planning.plan import Plan

GIB = 1024.0**3
_MEANING = {
    "parameters": "master weights, float32, this rank's share",
    "gradients": "float32, this rank's share",
    "optimizer": "AdamW's two moments, this rank's share",
    "gathered": "weights and gradients of the layers in use, in full",
    "activations": "what waits for the backward pass of one micro-batch",
    "backward": "gradients of the widest activation",
    "head": "log-probabilities, one chunk of tokens at a time",
}


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print all of it."""
    (console or Console()).print(as_tables(plan))


def as_tables(plan: Plan) -> RenderableType:
    """What runs where, memory of a rank and of the engine, and what a step costs."""
    return Group(
        _titled("What runs where", [(name, place, "") for name, place in plan.places]),
        _titled(_memory_title(plan), _memory_rows(plan)),
        _titled("Memory of the engine, on each of its devices", _engine_rows(plan)),
        _titled("One step, at most", _cost_rows(plan)),
        Text("Nothing was started and no weights were loaded: dry_run=true.", style="dim"),
    )


def gib(size: float) -> str:
    """Bytes as GiB, or MiB where that says more."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB / 10 else f"{size / 1024**2:,.1f} MiB"


def _titled(title: str, rows: list[tuple[str, str, str]]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None
    )
    table.add_column(style="dim", no_wrap=True)
    # Places are sentences, amounts are numbers under each other.
    table.add_column(justify="right" if any(row[2] for row in rows) else "left", overflow="fold")
    table.add_column(style="dim", overflow="fold")
    for row in rows:
        table.add_row(*row)
    table.add_row()
    return table


def _memory_title(plan: Plan) -> str:
    setup = plan.setup
    ways = ["layers computed again"] if setup.checkpoints_activations else []
    ways += [f"{setup.cpu_offload} on the host"] if setup.cpu_offload != "none" else []
    how = f" ({', '.join(ways)})" if ways else ""
    return (
        f"Memory of a trainer rank: {plan.sizes.num_parameters / 1e6:,.1f} million parameters, "
        f"micro-batches of {setup.micro_batch_tokens:,} tokens{how}"
    )


def _memory_rows(plan: Plan) -> list[tuple[str, str, str]]:
    memory = plan.memory
    rows = [(name, gib(getattr(memory, name)), meaning) for name, meaning in _MEANING.items()]
    if plan.sizes.untraced is not None:
        unknown = f"not known, because fake tensors do not run this model: {plan.sizes.untraced}"
        rows = [
            (name, "?", unknown) if name in ("activations", "backward") else (name, size, meaning)
            for name, size, meaning in rows
        ]
    rows.append(("in all", gib(memory.total), "at the peak of a step"))
    rows.append(
        ("host", gib(plan.host_bytes), "of a node: each of its processes loads all weights")
    )
    return rows


def _engine_rows(plan: Plan) -> list[tuple[str, str, str]]:
    engine, tokens = plan.engine, plan.context_tokens
    full, together = engine.episode(tokens), plan.concurrent_episodes
    rows = [
        ("weights", gib(engine.weights), plan.engine_dtype),
        ("cache", gib(full), f"keys and values of one episode of {tokens:,} tokens"),
        ("cache", gib(full * together), f"of {together} such episodes at once"),
    ]
    if engine.per_episode:
        state = "linear-attention state of one episode, whatever its length; part of the above"
        rows.append(("state", gib(engine.per_episode), state))
    return rows


def _cost_rows(plan: Plan) -> list[tuple[str, str, str]]:
    cost = plan.cost
    rows = [
        ("episodes", f"{cost.episodes:,}", "tasks x rollouts"),
        ("tokens", f"{cost.tokens:,}", "if every episode fills its context"),
        ("micro-batches", f"{cost.micro_batches:,}", "of each replica, if they do"),
        ("judge calls", f"{cost.judge_calls:,}", f"{cost.judge_tokens:,} tokens of traces"),
    ]
    if cost.update_interval:
        when = f"every {cost.update_interval} steps, if every pair is refined"
        rows.append(("reflection calls", f"{cost.reflection_calls:,}", when))
    return rows
