"""The trajectory record: everything needed to recompute an iteration's loss, one JSON line each.

A file `step_000007.jsonl.gz` holds the B · G slots of the iteration whose optimizer step was the
seventh, in slot order. Only `durations_s` differs between two runs of the same seed (and
`log_ratios` by rounding, if they train on different numbers of processes).
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arise.llm.text import clean_text
from arise.types import Iteration, Review, RolloutFailure, Trajectory, Turn

_RATIO_DECIMALS = 5


def trajectory_file(folder: Path, step: int) -> Path:
    """Where the iteration with optimizer step `step` (from 1) is recorded."""
    return folder / f"step_{step:06d}.jsonl.gz"


def record_step(path: Path) -> int:
    """The step that a file is named after."""
    return int(path.name.partition(".")[0].rpartition("_")[2])


def slot_records(iteration: Iteration) -> Iterator[dict[str, Any]]:
    """One record for each slot of each group, in slot order."""
    num_rows = 0
    for index, (sample, group) in enumerate(zip(iteration.samples, iteration.groups, strict=True)):
        for rollout, slot in enumerate(group.slots):
            record: dict[str, Any] = {
                "iteration": iteration.index,
                "task_id": group.task.id,
                "rollout": rollout,
                "tags": list(group.task.tags),
                "sampled_by": sample.reason,
                "sampled_tag": sample.tag,
                "sampled_capability": sample.capability,
                "sampled_numbers": dict(sample.numbers),
            }
            if isinstance(slot, RolloutFailure):
                record |= {"failure": slot.kind, "message": slot.message}
            else:
                review = iteration.reviews[index][rollout] if iteration.reviews else None
                record |= _trajectory(slot, review)
                if iteration.criteria:
                    record["criteria"] = [
                        {"id": c.id, "text": c.text, "weight": c.weight, "quote": c.quote}
                        for c in iteration.criteria[index]
                    ]
                record["shaped_reward"] = iteration.shaped_rewards[index][rollout]
                record["advantage"] = iteration.advantages[index][rollout]
                if record["advantage"] is not None:
                    num_rows += _add_log_ratios(record["turns"], iteration.log_ratios, num_rows)
            yield record


def _trajectory(trajectory: Trajectory, review: Review | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "instruction": trajectory.instruction,
        "finish_reason": trajectory.finish_reason,
        "task_reward": trajectory.task_reward,
        "num_generated_tokens": trajectory.num_generated_tokens,
        "skills": [
            {"pair_id": skill.pair_id, "revision": skill.revision, "text": skill.text}
            for skill in trajectory.skills
        ],
        "turns": [_turn(turn) for turn in trajectory.turns],
    }
    if review is not None:
        record["review"] = {
            "judged_pair_ids": list(review.judged_pair_ids),
            "verdicts": [
                {"pair_id": v.pair_id, "outcome": v.outcome, "reason": v.reason}
                for v in review.verdicts
            ],
            "diagnostics": [
                {
                    "kind": d.kind,
                    "behaviour": d.behaviour,
                    "signal": d.signal,
                    "covered_by": d.covered_by,
                }
                for d in review.diagnostics
            ],
            "error": review.error,
            "prompt_hash": review.prompt_hash,
            "model": review.model,
            "shortening": review.shortening,
        }
    record["harness"] = dataclasses.asdict(trajectory.harness)
    record["durations_s"] = {key: round(s, 4) for key, s in trajectory.durations_s.items()}
    return record


def _add_log_ratios(
    turns: list[dict[str, Any]], log_ratios: Mapping[int, Any], first_row: int
) -> int:
    """Give each turn its tokens' log ω, in nats; the turns' number of training rows.

    Five decimals are far below what matters for a ratio, and cost little beside the tokens.
    """
    starts = [n for n, turn in enumerate(turns) if n == 0 or turn["starts_row"]]
    ends = [*starts[1:], len(turns)] if turns else []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if first_row + number not in log_ratios:
            continue
        values = iter(log_ratios[first_row + number].tolist())
        for turn in turns[start:end]:
            own = [next(values) for _ in turn["token_ids"]]
            # + 0.0 makes a negative zero positive.
            turn["log_ratios"] = [
                round(value, _RATIO_DECIMALS) + 0.0 if math.isfinite(value) else None
                for value in own
            ]
    return len(starts)


def _turn(turn: Turn) -> dict[str, Any]:
    record: dict[str, Any] = {
        "prompt_token_ids": list(turn.prompt_token_ids),
        "token_ids": list(turn.token_ids),
        # JSON has no infinity; a log-probability that is not finite trains nothing anyway.
        "logprobs": [value if math.isfinite(value) else None for value in turn.logprobs],
        "policy_versions": list(turn.policy_versions),
        "text": turn.text,
        "action": turn.action,
        "observation": turn.observation,
        "exit_code": turn.exit_code,
        "finish_reason": turn.finish_reason,
        "starts_row": turn.starts_row,
    }
    if turn.trained_prompt_token_ids is not None:
        record["trained_prompt_token_ids"] = list(turn.trained_prompt_token_ids)
    return record


def write_records(path: Path, records: Iterator[Mapping[str, Any]]) -> None:
    """Write a compressed JSON-lines file; it appears under its name only when complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".writing_{path.name}")
    with (
        hidden.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=5, mtime=0) as packed,
    ):
        for record in records:
            line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
            packed.write(clean_text(line).encode() + b"\n")
    hidden.rename(path)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one step."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
