"""Typed schemas of the configuration groups, registered with Hydra.

Each YAML file of a group starts from its schema, so an unknown key or a wrong type is refused
when the configuration is composed, before anything heavy is imported (`arise.validation` refuses
what `+key=value` adds). Values live in `configs/`, with meaning, unit and equation; here every
field is mandatory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from arise.config_engines import ENGINE_SCHEMAS
from arise.config_evaluate import EVALUATE_SCHEMAS
from arise.config_harness import HARNESS_SCHEMAS


@dataclass
class Resume:
    """How strictly a run that goes on must be the one it was."""

    force: bool = MISSING


@dataclass
class Root:
    """The whole configuration; see `configs/train.yaml`."""

    experiment_name: str = MISSING
    seed: int = MISSING
    ckpt_path: str | None = MISSING
    resume: Resume = MISSING
    quiet: bool = MISSING
    dry_run: bool = MISSING
    model: Any = MISSING
    algorithm: Any = MISSING
    rollout: Any = MISSING
    curriculum: Any = MISSING
    rubrics: Any = MISSING
    judge: Any = MISSING
    reflection: Any = MISSING
    engine: Any = MISSING
    environment: Any = MISSING
    harness: Any = MISSING
    datamodule: Any = MISSING
    evaluation: Any = MISSING
    callbacks: Any = MISSING
    trainer: Any = MISSING
    logger: Any = MISSING
    paths: Any = MISSING


@dataclass
class Lora:
    """Low-rank adapters; see `configs/model/shellworld.yaml`."""

    rank: int = MISSING
    alpha: int = MISSING
    target_modules: Any = MISSING


@dataclass
class Model:
    """Which policy is trained; see `configs/model/`."""

    name: str = MISSING
    loader: dict[str, Any] = MISSING
    compute_dtype: str = MISSING
    layout: str = MISSING
    logprob_chunk_tokens: int = MISSING
    activation_checkpointing: bool = MISSING
    tensor_parallel: int = MISSING
    sequence_parallel: int = MISSING
    cpu_offload: str = MISSING
    lora: Lora = MISSING


@dataclass
class Algorithm:
    """Rewards, advantages, loss and optimizer; see `configs/algorithm/`."""

    rubric_weight: float = MISSING
    std: str = MISSING
    epsilon: float = MISSING
    length_alpha: float = MISSING
    length_threshold_tokens: int = MISSING
    loss_order: str = MISSING
    dual_clip: float = MISSING
    ratio_low: float = MISSING
    ratio_high: float = MISSING
    max_initial_ratio_error: float | None = MISSING
    optimizer: dict[str, Any] = MISSING
    warmup_steps: int = MISSING
    max_grad_norm: float = MISSING
    micro_batch_tokens: int = MISSING


@dataclass
class Rollout:
    """How episodes are run; see `configs/rollout/`."""

    tasks_per_step: int = MISSING
    rollouts_per_task: int = MISSING
    context_tokens: int = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    top_k: int = MISSING
    max_staleness: int = MISSING
    max_in_flight: int | None = MISSING
    max_sandboxes: int | None = MISSING
    max_groups_in_flight: int | None = MISSING
    agent_timeout_s: float = MISSING
    max_lost_iterations: int = MISSING
    deterministic: bool = MISSING


@dataclass
class Curriculum:
    """Which tasks are sampled; see `configs/curriculum/`."""

    sampler: str = MISSING
    min_discovery_probability: float = MISSING
    pair_quota: float = MISSING
    gamma_obs: float = MISSING
    gamma_unobs: float = MISSING
    quarantine_after: int = MISSING


@dataclass
class Skills:
    """Whether active skills reach the system prompt."""

    inject: bool = MISSING


@dataclass
class ScaffoldOptions:
    """RuscaRL's scaffold; see `configs/rubrics/dynamic.yaml`."""

    show: str = MISSING
    steepness: float = MISSING
    midpoint: float = MISSING
    total_steps: int = MISSING
    strip: bool = MISSING


@dataclass
class OnlineCriteria:
    """OnlineRubrics' elicitation; see `configs/rubrics/dynamic.yaml`."""

    reference: str = MISSING
    pairs_per_task: int = MISSING
    max_criteria: int = MISSING
    outcome_weight: float = MISSING


@dataclass
class Rubrics:
    """The pool's life cycle; see `configs/rubrics/`."""

    mode: str = MISSING
    skills: Skills = MISSING
    update_interval: int = MISSING
    eta_low: float = MISSING
    eta_high: float = MISSING
    max_pairs: int = MISSING
    max_new_pairs: int = MISSING
    max_records: int = MISSING
    evidence_budget_tokens: int | None = MISSING
    max_text_chars: int = MISSING
    pool_path: str | None = MISSING
    prompts_dir: str | None = MISSING
    verdicts: str = MISSING
    scaffold: ScaffoldOptions = MISSING
    online: OnlineCriteria = MISSING


@dataclass
class Prices:
    """What an endpoint charges per million tokens; see `configs/judge/openai.yaml`."""

    prompt: float | None = MISSING
    completion: float | None = MISSING


@dataclass
class Judging:
    """How trajectories are judged, whoever judges; see `configs/judge/`."""

    rubrics_per_request: int | None = MISSING
    trace_budget_tokens: int = MISSING
    max_concurrency: int = MISSING
    max_calls_per_iteration: int | None = MISSING
    on_outage: str = MISSING
    give_up_after: int = MISSING
    alarm_after: int = MISSING
    cache: bool = MISSING
    prices: Prices = MISSING


@dataclass
class Endpoint:
    """An OpenAI-compatible endpoint; see `configs/judge/openai.yaml`."""

    _target_: str = MISSING
    config_key: str = MISSING
    model: str = MISSING
    base_url: str = MISSING
    api_key_env: str | None = MISSING
    temperature: float | None = MISSING
    max_tokens: int | None = MISSING
    timeout_s: float = MISSING
    max_tries: int = MISSING
    max_concurrency: int = MISSING
    backoff_s: float = MISSING
    max_wait_s: float = MISSING
    response_format: str | None = MISSING


@dataclass
class JudgeEndpoint(Judging, Endpoint):
    """A judge behind an endpoint."""


@dataclass
class ReflectionEndpoint(Endpoint):
    """A reflection model behind an endpoint."""

    prices: Prices = MISSING


@dataclass
class JudgeRules(Judging):
    """The offline stand-in for a judge; see `configs/judge/rules.yaml`."""

    _target_: str = MISSING
    role: str = MISSING


@dataclass
class DataModule:
    """Training tasks; see `configs/datamodule/`."""

    corpus: Any = MISSING
    generator: dict[str, Any] | None = MISSING
    on_broken: str = MISSING
    tags: str | None = MISSING


@dataclass
class Evaluation:
    """Held-out evaluation; see `configs/evaluation/`."""

    corpus: Any = MISSING
    generator: dict[str, Any] | None = MISSING
    extra: dict[str, Any] = MISSING
    eval_interval: int | None = MISSING
    attempts_per_task: int = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    top_k: int = MISSING


@dataclass
class CheckpointOptions:
    """When checkpoints are written."""

    every_steps: int = MISSING
    keep_last: int = MISSING
    keep_every: int = MISSING


@dataclass
class Watch:
    """How soon the death of one of several processes is noticed."""

    interval_s: float = MISSING
    timeout_s: float = MISSING
    stall_s: float = MISSING


@dataclass
class Callbacks:
    """What happens around the training step; see `configs/callbacks/default.yaml`."""

    checkpoint: CheckpointOptions = MISSING
    watch: Watch = MISSING


@dataclass
class Paths:
    """Where things are written; see `configs/paths/default.yaml`."""

    output_dir: str = MISSING
    cache_dir: str = MISSING


_SCHEMAS: tuple[tuple[str | None, str, type], ...] = (
    (None, "schema", Root),
    ("model", "schema", Model),
    ("algorithm", "schema", Algorithm),
    ("rollout", "schema", Rollout),
    ("curriculum", "schema", Curriculum),
    ("rubrics", "schema", Rubrics),
    ("judge", "openai_schema", JudgeEndpoint),
    ("judge", "rules_schema", JudgeRules),
    ("reflection", "openai_schema", ReflectionEndpoint),
    ("datamodule", "schema", DataModule),
    ("evaluation", "schema", Evaluation),
    ("callbacks", "schema", Callbacks),
    ("paths", "schema", Paths),
)


def schemas() -> dict[tuple[str | None, str], type]:
    """All schemas by group (`None`: the whole configuration) and name."""
    listed = (*_SCHEMAS, *ENGINE_SCHEMAS, *HARNESS_SCHEMAS, *EVALUATE_SCHEMAS)
    return {(group, name): node for group, name, node in listed}


def register_schemas() -> None:
    """Put the schemas into Hydra's ConfigStore; safe to repeat."""
    store = ConfigStore.instance()
    for (group, name), node in schemas().items():
        store.store(group=group, name=name, node=node)


def instantiate_choice(group: str, name: str, *, configs: Path) -> Any:
    """The object that one file of a group describes, for tools that need no whole configuration.

    Args:
        group: Such as `environment`.
        name: The file's name without its ending.
        configs: The folder of all groups.
    """
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    register_schemas()
    with initialize_config_dir(config_dir=str(configs), version_base="1.3"):
        return instantiate(compose(config_name=f"{group}/{name}")[group], _convert_="all")
