"""A trajectory as the judge reads it, within a token budget and without losing an action."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from arise.llm.text import clean_text
from arise.llm.tokens import cut_middle_to_tokens, estimate_tokens
from arise.rubrics.payloads import TraceStep, TrajectoryView
from arise.types import Task, Trajectory

MIN_PIECE_TOKENS = 40
_LABELS = {
    "observation": "tool outputs",
    "text": "model messages",
    "command": "commands (inside; none is missing)",
}


def trajectory_view(task: Task, trajectory: Trajectory) -> TrajectoryView:
    """The whole interaction trace as valid Unicode text."""
    return TrajectoryView(
        task_id=trajectory.task_id,
        instruction=clean_text(trajectory.instruction or task.instruction),
        steps=tuple(
            TraceStep(
                text=clean_text(turn.text),
                command=None if turn.action is None else clean_text(turn.action),
                observation=clean_text(turn.observation),
                exit_code=turn.exit_code,
            )
            for turn in trajectory.turns
        ),
        finish_reason=trajectory.finish_reason.value,
        is_success=trajectory.is_success,
    )


def shorten(view: TrajectoryView, budget_tokens: int) -> TrajectoryView:
    """`view` with at most `budget_tokens` estimated tokens in its steps, and a note of the cuts.

    Tool outputs are cut first, the longest first, each in its middle; if that is not enough the
    model's messages, then commands. No step goes, and no piece is cut below `MIN_PIECE_TOKENS`, so
    a very small budget is exceeded rather than an action lost.

    Args:
        view: The trace.
        budget_tokens: For messages, commands and tool outputs together, by `estimate_tokens`.
    """
    notes = []
    for name, label in _LABELS.items():
        total = sum(_size(step) for step in view.steps)
        if total <= budget_tokens:
            break
        lengths = [estimate_tokens(getattr(step, name) or "") for step in view.steps]
        limit = common_limit(lengths, budget_tokens - (total - sum(lengths)))
        limit = max(limit, MIN_PIECE_TOKENS)
        if max(lengths, default=0) <= limit:
            continue
        view = replace(view, steps=tuple(_cut(step, name, limit) for step in view.steps))
        num_cut = sum(length > limit for length in lengths)
        notes.append(f"{num_cut} of {len(lengths)} {label}")
    if not notes:
        return view
    note = f"Shortened in the middle, with the number of characters left out: {', '.join(notes)}."
    return replace(view, note=note)


def step_lines(view: TrajectoryView) -> list[dict[str, Any]]:
    """One object per step for the prompt; a command is not repeated inside its message."""
    lines = []
    for number, step in enumerate(view.steps, start=1):
        line: dict[str, Any] = {"step": number}
        text = step.text
        if step.command and step.command in text:
            text = text.replace(step.command, "⟨the command⟩", 1)
        line["message"] = text
        if step.command is not None:
            line |= {"command": step.command, "exit_code": step.exit_code}
        if step.command is not None or step.observation:
            line["output"] = step.observation
        lines.append(line)
    return lines


def _size(step: TraceStep) -> int:
    return sum(map(estimate_tokens, (step.text, step.command or "", step.observation)))


def _cut(step: TraceStep, name: str, limit: int) -> TraceStep:
    value = getattr(step, name)
    if value is None:
        return step
    changes: dict[str, Any] = {name: cut_middle_to_tokens(value, limit)}
    return replace(step, **changes)


def common_limit(lengths: list[int], room: int) -> int:
    """The largest L with Σ min(length, L) ≤ room, so that only the longest pieces are cut."""
    left = max(room, 0)
    ordered = sorted(lengths)
    for index, length in enumerate(ordered):
        share = left // (len(ordered) - index)
        if length > share:
            return share
        left -= length
    return ordered[-1] if ordered else 0
