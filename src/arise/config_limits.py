"""Which values of the configuration are allowed: words to choose from, and ranges of numbers.

`arise.validation` refuses others before anything heavy is imported; `arise.config_reference`
writes them into the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An interval of numbers.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        has_low: Whether the lower end itself is allowed.
        has_high: Whether the upper end itself is allowed.

    Example:
        >>> str(Range(low=0, high=inf, has_low=False, has_high=False)), 0 in from_to(0, 1)
        ('(0, inf)', True)
    """

    low: float
    high: float
    has_low: bool
    has_high: bool

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.has_low else value > self.low
        below = value <= self.high if self.has_high else value < self.high
        return above and below

    def __str__(self) -> str:
        left, right = "[" if self.has_low else "(", "]" if self.has_high else ")"
        return f"{left}{self.low:.12g}, {self.high:.12g}{right}"


def at_least(low: float) -> Range:
    """`low` and everything above, but not infinity."""
    return Range(low=low, high=inf, has_low=True, has_high=False)


def above(low: float, *, has_high: bool = False) -> Range:
    """Everything above `low`; infinity too if `has_high`."""
    return Range(low=low, high=inf, has_low=False, has_high=has_high)


def from_to(low: float, high: float) -> Range:
    """`low`, `high` and everything between."""
    return Range(low=low, high=high, has_low=True, has_high=True)


def between(low: float, high: float, *, has_low: bool = False, has_high: bool = False) -> Range:
    """What is between `low` and `high`, with those ends that are asked for."""
    return Range(low=low, high=high, has_low=has_low, has_high=has_high)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "algorithm.std": ("sample", "population"),
    "algorithm.loss_order": ("arise", "areal"),
    "datamodule.on_broken": ("fail", "skip"),
    "environment.grading": ("task", "shared", "separate"),
    "curriculum.sampler": ("capability", "uniform", "vade"),
    "rubrics.mode": ("dynamic", "frozen", "static", "ruscarl", "online", "none"),
    "rubrics.verdicts": ("judged", "shuffled"),
    "rubrics.scaffold.show": ("skill", "criterion"),
    "rubrics.online.reference": ("initial_policy", "reflection"),
    "judge.on_outage": ("continue", "stop"),
    "harness.action_format": ("raw", "fenced"),
    "harness.observation_role": ("user", "tool"),
    "harness.notation": ("json", "xml"),
    "model.layout": ("auto", "packed", "rows"),
    "model.compute_dtype": ("float32", "bfloat16"),
    "model.cpu_offload": ("none", "activations", "weights", "both"),
    "engine.dtype": ("float32", "bfloat16", "float16"),
    "engine.sync": ("auto", "disk", "nccl", "ipc"),
}
"""Allowed words by key; a key that is not there is not looked at."""

RANGES: Mapping[str, Range] = {
    "seed": from_to(0, 2**32 - 1),
    "algorithm.rubric_weight": from_to(0, 1),
    "algorithm.epsilon": between(0, 1),
    "algorithm.length_alpha": between(0, 1, has_low=True),
    "algorithm.length_threshold_tokens": at_least(0),
    "algorithm.dual_clip": above(1),
    "algorithm.ratio_low": between(0, 1, has_low=True),
    "algorithm.ratio_high": above(1, has_high=True),
    "algorithm.warmup_steps": at_least(0),
    "algorithm.max_grad_norm": above(0, has_high=True),
    "algorithm.micro_batch_tokens": at_least(1),
    "algorithm.optimizer.lr": at_least(0),
    "algorithm.optimizer.eps": at_least(0),
    "algorithm.optimizer.weight_decay": at_least(0),
    "algorithm.max_initial_ratio_error": above(0),
    "rollout.tasks_per_step": at_least(1),
    "rollout.rollouts_per_task": at_least(2),
    "rollout.context_tokens": at_least(1),
    "rollout.temperature": above(0),
    "rollout.top_p": between(0, 1, has_high=True),
    "rollout.top_k": at_least(0),
    "rollout.max_lost_iterations": at_least(1),
    "rollout.agent_timeout_s": above(0),
    "rollout.max_staleness": at_least(0),
    "rollout.max_in_flight": at_least(1),
    "rollout.max_sandboxes": at_least(1),
    "rollout.max_groups_in_flight": at_least(1),
    "curriculum.min_discovery_probability": from_to(0, 1),
    "curriculum.pair_quota": between(0, 1, has_high=True),
    "curriculum.gamma_obs": from_to(0, 1),
    "curriculum.gamma_unobs": between(0, 1, has_high=True),
    "curriculum.quarantine_after": at_least(1),
    "rubrics.update_interval": at_least(1),
    "rubrics.eta_low": from_to(0, 1),
    "rubrics.eta_high": from_to(0, 1),
    "rubrics.max_pairs": at_least(1),
    "rubrics.max_new_pairs": at_least(0),
    "rubrics.max_records": at_least(1),
    "rubrics.evidence_budget_tokens": at_least(1),
    "rubrics.max_text_chars": at_least(1),
    # Before the key that takes its value by default.
    "trainer.max_steps": at_least(1),
    "rubrics.scaffold.steepness": above(0),
    "rubrics.scaffold.midpoint": from_to(0, 1),
    "rubrics.scaffold.total_steps": at_least(1),
    "rubrics.online.pairs_per_task": at_least(1),
    "rubrics.online.max_criteria": at_least(1),
    "rubrics.online.outcome_weight": above(0),
    "judge.max_concurrency": at_least(1),
    "judge.rubrics_per_request": at_least(1),
    "judge.trace_budget_tokens": at_least(1),
    "judge.max_calls_per_iteration": at_least(1),
    "judge.give_up_after": at_least(1),
    "judge.alarm_after": at_least(1),
    "judge.prices.prompt": at_least(0),
    "judge.prices.completion": at_least(0),
    "judge.temperature": at_least(0),
    "judge.max_tokens": at_least(1),
    "judge.timeout_s": at_least(0.001),
    "judge.max_tries": at_least(1),
    "judge.backoff_s": at_least(0),
    "judge.max_wait_s": at_least(0),
    "reflection.prices.prompt": at_least(0),
    "reflection.prices.completion": at_least(0),
    "reflection.temperature": at_least(0),
    "reflection.max_tokens": at_least(1),
    "reflection.timeout_s": at_least(0.001),
    "reflection.max_tries": at_least(1),
    "reflection.max_concurrency": at_least(1),
    "reflection.backoff_s": at_least(0),
    "reflection.max_wait_s": at_least(0),
    "reflection.max_new_pairs_per_update": at_least(1),
    "reflection.min_gap_share": from_to(0, 1),
    "reflection.min_gap_records": at_least(1),
    "model.logprob_chunk_tokens": at_least(1),
    "model.tensor_parallel": at_least(1),
    "model.sequence_parallel": at_least(1),
    "model.lora.rank": at_least(0),
    "model.lora.alpha": at_least(1),
    "model.timeout_s": above(0),
    "model.max_tries": at_least(1),
    "model.max_concurrency": at_least(1),
    "model.loader.seed": at_least(0),
    "model.loader.hidden_size": at_least(1),
    "model.loader.num_layers": at_least(1),
    "model.loader.num_heads": at_least(1),
    "model.loader.intermediate_size": at_least(1),
    "model.loader.context_tokens": at_least(1),
    "engine.max_sessions": at_least(1),
    "engine.kv_cache_gib": above(0),
    "engine.start_timeout_s": above(0),
    "engine.request_timeout_s": above(0),
    "engine.num_servers": at_least(1),
    "engine.health_interval_s": above(0),
    "engine.dead_after_s": above(0),
    "engine.max_outage_s": above(0),
    "engine.max_restarts": at_least(0),
    "environment.sandbox_uid": at_least(1),
    "environment.cpus": at_least(0.01),
    "environment.storage_mb": at_least(1),
    "environment.memory_mb": at_least(16),
    "environment.max_processes": at_least(8),
    "environment.max_output_bytes": at_least(2),
    "environment.start_timeout_s": at_least(0.1),
    "environment.start_concurrency": at_least(1),
    "environment.call_timeout_s": at_least(1),
    "environment.disk_check_interval_s": at_least(0.1),
    "datamodule.generator.count": at_least(1),
    "datamodule.generator.seed": at_least(0),
    "harness.summarize_below_tokens": at_least(1),
    "harness.first_call_timeout_s": above(0),
    "harness.max_refused_calls": at_least(1),
    "harness.port": from_to(1, 65535),
    "benchmark.attempts": at_least(1),
    "benchmark.temperature": at_least(0),
    "benchmark.top_p": between(0, 1, has_high=True),
    "benchmark.top_k": at_least(0),
    "benchmark.agent_timeout_s": above(0),
    "benchmark.default_timeout_s": above(0),
    "benchmark.generator.count": at_least(1),
    "benchmark.generator.seed": at_least(0),
    "benchmark.harness.max_output_tokens": at_least(1),
    "benchmark.harness.summarize_below_tokens": at_least(1),
    "context_tokens": at_least(1),
    "max_in_flight": at_least(1),
    "harness.max_turns": at_least(1),
    "harness.max_output_tokens": at_least(1),
    "harness.command_timeout_s": above(0),
    "harness.max_observation_chars": at_least(1),
    "evaluation.attempts_per_task": at_least(1),
    "evaluation.eval_interval": at_least(1),
    "evaluation.temperature": at_least(0),
    "evaluation.top_p": between(0, 1, has_high=True),
    "evaluation.top_k": at_least(0),
    "evaluation.generator.count": at_least(1),
    "evaluation.generator.seed": at_least(0),
    "callbacks.checkpoint.every_steps": at_least(1),
    "callbacks.checkpoint.keep_last": at_least(0),
    "callbacks.checkpoint.keep_every": at_least(0),
    "callbacks.watch.interval_s": at_least(0.1),
    "callbacks.watch.timeout_s": above(0),
    "callbacks.watch.stall_s": above(0),
    "trainer.devices": at_least(1),
    "trainer.num_nodes": at_least(1),
    "trainer.log_every_n_steps": at_least(1),
}
"""Allowed numbers by key, in the order of the checks; null and text are not looked at."""

STUDY_RANGES: Mapping[str, Range] = {
    "processes": at_least(1),
    "stage_steps": at_least(1),
    "all_fail.tasks": at_least(1),
    "all_fail.rollouts": at_least(2),
    "retention.rollouts": at_least(1),
}
"""The same for a study (`configs/study.yaml`)."""
