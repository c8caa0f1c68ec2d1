"""The evidence behind the pool's decisions, gathered from the recorded trajectories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from arise.errors import ConfigError
from arise.runs.folder import RunFolder
from arise.runs.records import read_records, trajectory_file

MAX_REASONS = 3
"""Judge's reasons quoted for one decision."""

_SPEAKS_FOR = {"activated": "fail", "refined": "fail", "hidden": "pass", "retired": "pass"}


def read_step(run: Path, step: int) -> list[dict[str, Any]]:
    """The recorded slots of a step.

    Raises:
        ConfigError: The step is not recorded, or the file is damaged.
    """
    path = trajectory_file(RunFolder(path=run).trajectories, step)
    try:
        return list(read_records(path))
    except FileNotFoundError:
        raise ConfigError(
            f"step {step} of {run} is not recorded: there is no {path.name}"
        ) from None
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


class Evidence:
    """Verdicts and diagnostics by update window; each step's file is read once.

    Args:
        run: The run's folder.
        steps: Recorded steps.
        update_interval: Δ_pool; the window of an update at step s is (s - Δ_pool, s].
    """

    def __init__(self, run: Path, steps: Collection[int], *, update_interval: int) -> None:
        self._run = run
        self._steps = frozenset(steps)
        self._update_interval = update_interval
        self._slots: dict[int, list[dict[str, Any]]] = {}

    def of(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """What stands behind an event of a pair.

        Returns:
            For `created`: `issues` and `contrasts`, the cited records with their diagnostics. For
            others: `tasks` and `tags`, verdict counts by task and by task type (a task counts for
            each of its types), and `reasons`, what the judge said of verdicts with the `outcome`
            that speaks for the decision, one a task; for `refined` of rollouts that were shown the
            old text. Empty where nothing is recorded.
        """
        if event["type"] == "created":
            return {
                side: [self._cited(reference) for reference in event["evidence"][side]]
                for side in ("issues", "contrasts")
            }
        if event["type"] == "imported":
            return {}
        return self._window(event)

    def _window(self, event: Mapping[str, Any]) -> dict[str, Any]:
        wanted = _SPEAKS_FOR.get(event["type"])
        tasks: defaultdict[str, Counter[str]] = defaultdict(Counter)
        tags: defaultdict[str, Counter[str]] = defaultdict(Counter)
        reasons: dict[str, dict[str, Any]] = {}
        step = event["step"]
        for number in range(max(1, step - self._update_interval + 1), step + 1):
            for slot in self._read(number):
                verdict = _verdict_on(event["pair_id"], slot)
                if verdict is None:
                    continue
                outcome, task = verdict["outcome"], slot["task_id"]
                tasks[task][outcome] += 1
                for tag in slot["tags"]:
                    tags[tag][outcome] += 1
                if outcome == wanted and len(reasons) < MAX_REASONS and _was_shown(event, slot):
                    place = {"step": number, "task_id": task, "rollout": slot["rollout"]}
                    reasons.setdefault(task, {**place, "reason": verdict["reason"]})
        return {
            "tasks": {task: dict(counts) for task, counts in sorted(tasks.items())},
            "tags": {tag: dict(counts) for tag, counts in sorted(tags.items())},
            "outcome": wanted,
            "reasons": list(reasons.values()),
        }

    def _cited(self, reference: Mapping[str, Any]) -> dict[str, Any]:
        step = reference["iteration"] + 1
        slots: Iterable[dict[str, Any]] = (
            slot
            for slot in self._read(step)
            if (slot["task_id"], slot["rollout"]) == (reference["task_id"], reference["rollout"])
        )
        review = next(iter(slots), {}).get("review", {})
        return {
            "step": step,
            "task_id": reference["task_id"],
            "rollout": reference["rollout"],
            "diagnostics": [
                {"kind": entry["kind"], "behaviour": entry["behaviour"], "signal": entry["signal"]}
                for entry in review.get("diagnostics", ())
            ],
        }

    def _read(self, step: int) -> list[dict[str, Any]]:
        if step not in self._steps:
            return []
        if step not in self._slots:
            # Tokens are most of a record and no part of the evidence.
            self._slots[step] = [
                {key: value for key, value in slot.items() if key != "turns"}
                for slot in read_step(self._run, step)
            ]
        return self._slots[step]


def _verdict_on(pair_id: int, slot: Mapping[str, Any]) -> dict[str, Any] | None:
    verdicts = slot.get("review", {}).get("verdicts", ())
    return next((verdict for verdict in verdicts if verdict["pair_id"] == pair_id), None)


def _was_shown(event: Mapping[str, Any], slot: Mapping[str, Any]) -> bool:
    """Whether a rollout may be quoted: a refinement rests on those that had the old text."""
    if event["type"] != "refined":
        return True
    old = (event["pair_id"], event["revision"] - 1)
    return any((skill["pair_id"], skill["revision"]) == old for skill in slot["skills"])
