"""What the report shows of one trajectory, cut so that all of them fit into the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from arise.runs.reasons import why_task

_LOGPROB_DECIMALS = 3
_TEXTS = ("text", "action", "observation")
_KEPT = ("instruction", "skills", "review", "durations_s", "failure", "message")
SHORTEST_CUT = 200
"""Characters that stay of a text however small the page has to be."""


def slot_details(slot: Mapping[str, Any], *, max_chars: int) -> dict[str, Any]:
    """The slot as the page shows it.

    Above `max_chars` of JSON the tokens go first, then the middle of the longest texts, and `cut`
    says what is missing. The record itself is whole.

    Args:
        slot: A record of `arise.runs.records`.
        max_chars: Characters of JSON to stay below; not below what short texts need.
    """
    details = {key: slot[key] for key in _KEPT if key in slot}
    details["why"] = why_task(slot)
    details["turns"] = [_turn(turn, slot["iteration"]) for turn in slot.get("turns", ())]
    if _size(details) <= max_chars:
        return details
    cut = {"tokens": 0, "chars": 0}
    for turn in details["turns"]:
        cut["tokens"] += len(turn.pop("tokens", ()))
        for key in ("log_ratios", "logprobs", "versions"):
            turn.pop(key, None)
    excess = _size(details) - max_chars
    if excess > 0:
        cut["chars"] = _cut_texts(details, excess)
    return {**details, "cut": cut}


def _turn(turn: Mapping[str, Any], iteration: int) -> dict[str, Any]:
    """Texts and tokens of a turn; what is as usual is left out."""
    shown: dict[str, Any] = {"text": turn["text"], "tokens": turn.get("token_ids", [])}
    if turn["action"] != turn["text"]:
        shown["action"] = turn["action"]
    for key in ("observation", "exit_code"):
        if turn[key] not in ("", None):
            shown[key] = turn[key]
    if turn.get("finish_reason", "stop") != "stop":
        shown["finish_reason"] = turn["finish_reason"]
    if "logprobs" in turn:
        shown["logprobs"] = [
            None if value is None else round(value, _LOGPROB_DECIMALS) for value in turn["logprobs"]
        ]
    if "log_ratios" in turn:
        shown["log_ratios"] = turn["log_ratios"]
    versions = turn.get("policy_versions", ())
    if any(version != iteration for version in versions):
        shown["versions"] = versions
    return shown


def _cut_texts(details: dict[str, Any], excess: int) -> int:
    """Shorten the longest texts to one common length; the characters taken."""
    places = [(details, "instruction")] if details.get("instruction") else []
    places += [(turn, key) for turn in details["turns"] for key in _TEXTS if turn.get(key)]
    limit = _common_limit([len(place[key]) for place, key in places], excess)
    taken = 0
    for place, key in places:
        text = place[key]
        if len(text) > limit:
            head = limit // 2
            missing = len(text) - limit
            place[key] = f"{text[:head]}\n[… {missing} characters …]\n{text[len(text) - head :]}"
            taken += missing
    return taken


def _common_limit(lengths: list[int], excess: int) -> int:
    """Largest limit that takes `excess` characters from texts of these lengths.

    Example: lengths [100, 900, 1000] with 600 to take: 650, which takes 250 and 350.
    """
    ordered = sorted(lengths, reverse=True)
    for count in range(1, len(ordered) + 1):
        following = ordered[count] if count < len(ordered) else 0
        taken = sum(ordered[:count]) - count * following
        if taken >= excess:
            return max(SHORTEST_CUT, following + (taken - excess) // count)
    return SHORTEST_CUT


def _size(details: Mapping[str, Any]) -> int:
    return len(json.dumps(details, ensure_ascii=False, separators=(",", ":")))
