"""One line a trajectory, by column: what the report's tables and maps are made of.

The whole index is in the page when it opens, so it holds numbers and short codes only: at
150 iterations of 256 trajectories it packs to about half a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from arise.types import FailureKind, FinishReason

STATES = (*FinishReason, *FailureKind)
"""How a rollout ended; the index holds the position in here."""

VERDICT_CODES = {"pass": "p", "fail": "f", "not_applicable": "n"}
INVALID = "i"

_DECIMALS = 4
_COLUMNS = ("step", "group", "rollout", "state", "reward", "shaped", "advantage", "tokens")
_MORE_COLUMNS = ("turns", "seconds", "judged", "verdicts", "skills")


class Index:
    """Collects slots; `data` is what the page gets.

    Verdicts of a trajectory are one letter a judged pair, in the order of the set of pairs that
    `judged` numbers: `"pfi"` for pairs [2, 3, 7] is a pass, a fail and no valid answer.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, *_MORE_COLUMNS)}
        self._tasks: dict[str, int] = {}
        self._tags: list[list[str]] = []
        self._groups: list[dict[str, Any]] = []
        self._sets: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._columns["step"])

    def add_step(self, step: int, slots: Iterable[Mapping[str, Any]]) -> None:
        """Enter the slots of a step, in slot order."""
        last_task = None
        for slot in slots:
            if slot["task_id"] != last_task:
                last_task = slot["task_id"]
                self._add_group(step, slot)
            self._add_slot(step, slot)

    def _add_group(self, step: int, slot: Mapping[str, Any]) -> None:
        task = self._tasks.setdefault(slot["task_id"], len(self._tasks))
        if task == len(self._tags):
            self._tags.append(slot["tags"])
        self._groups.append(
            {
                "step": step,
                "task": task,
                "by": slot["sampled_by"],
                "tag": slot["sampled_tag"],
                "capability": slot["sampled_capability"],
            }
        )

    def _add_slot(self, step: int, slot: Mapping[str, Any]) -> None:
        review = slot.get("review")
        durations = slot.get("durations_s", {})
        row = {
            "step": step,
            "group": len(self._groups) - 1,
            "rollout": slot["rollout"],
            "state": STATES.index(slot.get("failure", slot.get("finish_reason"))),
            "reward": _rounded(slot.get("task_reward")),
            "shaped": _rounded(slot.get("shaped_reward")),
            "advantage": _rounded(slot.get("advantage")),
            "tokens": slot.get("num_generated_tokens", 0),
            "turns": len(slot.get("turns", ())),
            "seconds": round(sum(durations.values()), 2),
            "judged": -1 if review is None else self._judged_set(review),
            "verdicts": "" if review is None else verdict_letters(review),
            "skills": len(slot.get("skills", ())),
        }
        for name, value in row.items():
            self._columns[name].append(value)

    def _judged_set(self, review: Mapping[str, Any]) -> int:
        return self._sets.setdefault(tuple(review["judged_pair_ids"]), len(self._sets))

    @property
    def data(self) -> dict[str, Any]:
        """Primitives for the page."""
        return {
            "states": [str(state) for state in STATES],
            "num_finish_reasons": len(FinishReason),
            "tasks": list(self._tasks),
            "tags": self._tags,
            "groups": {
                name: [group[name] for group in self._groups]
                for name in ("step", "task", "by", "tag", "capability")
            },
            "judged_sets": [list(ids) for ids in self._sets],
            "columns": self._columns,
        }


def verdict_letters(review: Mapping[str, Any]) -> str:
    """One letter a judged pair; see `Index`."""
    outcomes = {verdict["pair_id"]: verdict["outcome"] for verdict in review["verdicts"]}
    return "".join(
        VERDICT_CODES[outcomes[pair_id]] if pair_id in outcomes else INVALID
        for pair_id in review["judged_pair_ids"]
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DECIMALS)
