"""The pool's life as sentences: what a person reads of `pool.jsonl`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_TOLD = ("imported", "created", "activated", "refined", "hidden", "retired")


def story_line(event: Mapping[str, Any]) -> str | None:
    """One life-cycle event as a sentence; `None` for events that change nothing.

    Example: `R3 skill on: 12.5 % of 40 passed`.
    """
    kind = event["type"]
    if kind == "rejected":
        return f"a proposed pair was rejected: {event['reason']}"
    if kind == "generation" and event["error"]:
        return f"the reflection gave no pairs: {event['error']}"
    if kind not in _TOLD:
        return None
    name = f"R{event['pair_id']}"
    if kind in ("created", "imported"):
        pair = event["pair"]
        return f"{name} {kind}: {pair['title']} ({pair['capability']})"
    rate = f"{event['pass_rate']:.1%} of {event['num_applicable']} passed"
    if kind == "activated":
        return f"{name} skill on: {rate}"
    if kind == "refined":
        return f"{name} skill refined: {rate}; now: {event['text']}"
    if kind == "hidden":
        return f"{name} skill hidden: {rate}"
    return f"{name} retired: {rate}"


def event_counts(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many pairs were created, activated, refined, hidden and retired."""
    counts = Counter(event["type"] for event in events)
    return {kind: counts[kind] for kind in _TOLD if kind != "imported" or counts[kind]}
