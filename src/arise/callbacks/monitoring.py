"""Scalars for every logger."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil
from lightning import Callback, LightningModule, Trainer

from arise.curriculum.curriculum import Curriculum
from arise.types import FailureKind, FinishReason, Iteration, Trajectory


def rollout_metrics(iteration: Iteration) -> dict[str, float]:
    """`reward/*` and `rollout/*` of one iteration; undefined ones are left out.

    Args:
        iteration: With groups, shaped rewards and advantages.
    """
    groups = iteration.groups
    survivors = [trajectory for group in groups for trajectory in group.trajectories]
    failures = Counter(failure.kind for group in groups for failure in group.failures)
    metrics = {f"rollout/failures_{kind}": float(failures[kind]) for kind in FailureKind}
    metrics["rollout/incomplete_groups"] = float(sum(not g.is_complete for g in groups))
    if not survivors:
        return metrics
    count = len(survivors)
    turns = [len(trajectory.turns) for trajectory in survivors]
    tokens = [trajectory.num_generated_tokens for trajectory in survivors]
    finished = Counter(trajectory.finish_reason for trajectory in survivors)
    shaped = [value for row in iteration.shaped_rewards for value in row if value is not None]
    metrics |= {
        "reward/pass_rate": sum(t.is_success for t in survivors) / count,
        "reward/task_mean": statistics.fmean(t.task_reward for t in survivors),
        "rollout/turns_mean": statistics.fmean(turns),
        "rollout/generated_tokens_mean": statistics.fmean(tokens),
        "rollout/generated_tokens_max": float(max(tokens)),
        "rollout/rows": float(sum(len(t.rows) for t in survivors)),
    }
    if shaped:
        metrics["reward/shaped_mean"] = statistics.fmean(shaped)
    metrics |= {f"rollout/finish_{r}_share": finished[r] / count for r in FinishReason}
    metrics |= _harness_metrics(survivors)
    with_survivors = [group for group in groups if group.trajectories]
    for name, wanted in (("all_fail", False), ("all_pass", True)):
        uniform = sum(
            all(t.is_success is wanted for t in group.trajectories) for group in with_survivors
        )
        metrics[f"reward/{name}_group_share"] = uniform / len(with_survivors)
    rows = [[a for a in row if a is not None] for row in iteration.advantages]
    rows = [row for row in rows if row]
    if rows:
        silent = sum(not any(row) for row in rows)
        metrics["reward/zero_advantage_group_share"] = silent / len(rows)
    return metrics


def _harness_metrics(survivors: Sequence[Trajectory]) -> dict[str, float]:
    """Tool calls that could not be run, refused model calls, and why rows broke."""
    reports = [trajectory.harness for trajectory in survivors]
    num_calls = sum(report.num_tool_calls for report in reports)
    reasons: Counter[str] = Counter()
    for report in reports:
        reasons.update(report.row_reasons)
    metrics = {f"rollout/row_break_{reason}": float(count) for reason, count in reasons.items()}
    if num_calls:
        errors = sum(report.num_tool_errors for report in reports)
        metrics["rollout/tool_error_rate"] = errors / num_calls
    num_refused = sum(report.num_refused_calls for report in reports)
    if num_refused:
        metrics["rollout/refused_calls"] = float(num_refused)
    return metrics


class MonitoringCallback(Callback):
    """Logs each iteration once, at step k+1, to every logger.

    Args:
        curriculum: Source of `sampler/*` and `pool/*`.
    """

    def __init__(self, *, curriculum: Curriculum) -> None:
        self._curriculum = curriculum
        self._process = psutil.Process()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Complete the iteration's metrics and log them."""
        if not trainer.is_global_zero:
            return
        batch.durations_s["iteration"] = time.perf_counter() - batch.started_at
        if "wait" in batch.durations_s:
            share = batch.durations_s["wait"] / batch.durations_s["iteration"]
            batch.metrics["staleness/bubble_share"] = share
        batch.metrics |= rollout_metrics(batch)
        batch.metrics |= self._curriculum.metrics()
        batch.metrics |= {f"time/{name}_s": s for name, s in batch.durations_s.items()}
        batch.metrics |= _episode_times(batch)
        batch.metrics["system/memory_gb"] = self._process.memory_info().rss / 1e9
        for logger in trainer.loggers:
            logger.log_metrics(batch.metrics, step=trainer.global_step)
            logger.save()


def _episode_times(iteration: Iteration) -> dict[str, float]:
    """Mean seconds of an episode by phase."""
    survivors = [t for group in iteration.groups for t in group.trajectories]
    names = sorted({name for trajectory in survivors for name in trajectory.durations_s})
    return {
        f"time/episode_{name}_s": statistics.fmean(
            t.durations_s[name] for t in survivors if name in t.durations_s
        )
        for name in names
    }
