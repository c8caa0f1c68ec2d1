"""A run's plan from its configuration: what runs where, what it needs, what a step costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from arise.parallel_sizes import parallel_sizes
from arise.planning.memory import (
    EngineMemory,
    RankMemory,
    TrainerSetup,
    engine_memory,
    rank_memory,
)
from arise.planning.tracing import ModelSizes, model_sizes
from arise.rollout_sizes import max_episodes

_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TENSOR_PARALLEL_FLAG = "--tensor-parallel-size"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one step plays and asks for, at most.

    Attributes:
        episodes: B · G.
        tokens: B · G episodes that fill the context.
        micro_batches: Of a replica, if they do.
        judge_calls: One a trajectory and part of a pool that is full; 0 without a judge.
        judge_tokens: Of their prompts, trace alone.
        reflection_calls: Of a pool update: one for new pairs, one for each pair refined.
        update_interval: Steps between two updates; 0 if the pool is not updated.
    """

    episodes: int
    tokens: int
    micro_batches: int
    judge_calls: int
    judge_tokens: int
    reflection_calls: int
    update_interval: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a dry run tells.

    Attributes:
        places: Part of the run and where it runs, in words.
        sizes: Of the policy.
        setup: How it is trained.
        memory: Of a trainer rank.
        engine: Of the engine's device; shares the trainer's if it is in this process.
        engine_dtype: Of its weights and cache.
        context_tokens: Of one episode.
        concurrent_episodes: At once, at most.
        host_bytes: Memory of a trainer node's host: every process of it loads all weights.
        cost: Of a step.
    """

    places: tuple[tuple[str, str], ...]
    sizes: ModelSizes
    setup: TrainerSetup
    memory: RankMemory
    engine: EngineMemory
    engine_dtype: str
    context_tokens: int
    concurrent_episodes: int
    host_bytes: float
    cost: StepCost


def make_plan(cfg: Any, *, build: Any, engine: Any, is_gpu: bool, num_tasks: int) -> Plan:
    """Work out a run without starting any of it.

    Args:
        cfg: The validated and resolved configuration.
        build: Makes the policy in a dtype; called with fake tensors.
        engine: The engine's group, that of the candidate that would be chosen.
        is_gpu: Whether training uses CUDA devices.
        num_tasks: Training tasks.
    """
    import torch

    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[cfg.model.compute_dtype]
    sizes = model_sizes(
        build,
        dtype=dtype,
        fuses_linear_attention=False,
        lora_rank=cfg.model.lora.rank,
        lora_targets=cfg.model.lora.target_modules,
    )
    setup = trainer_setup(cfg, is_gpu=is_gpu)
    episodes = cfg.rollout.tasks_per_step * cfg.rollout.rollouts_per_task
    at_once = min(max_episodes(cfg) or episodes, episodes)
    return Plan(
        places=tuple(_places(cfg, engine, setup, at_once, num_tasks)),
        sizes=sizes,
        setup=setup,
        memory=rank_memory(sizes, setup),
        engine=engine_memory(
            sizes,
            value_bytes=_VALUE_BYTES[engine.dtype],
            tensor_parallel=_server_devices(engine),
        ),
        engine_dtype=engine.dtype,
        context_tokens=cfg.rollout.context_tokens,
        concurrent_episodes=at_once,
        host_bytes=4.0 * sizes.num_parameters * cfg.trainer.devices,
        cost=step_cost(cfg, setup),
    )


def trainer_setup(cfg: Any, *, is_gpu: bool) -> TrainerSetup:
    """How the trainer is spread, from the configuration."""
    model, parallel = cfg.model, parallel_sizes(cfg)
    return TrainerSetup(
        num_replicas=parallel.replicas,
        sequence_parallel=parallel.sequence,
        tensor_parallel=parallel.tensor,
        micro_batch_tokens=cfg.algorithm.micro_batch_tokens,
        compute_bytes=_VALUE_BYTES[model.compute_dtype],
        checkpoints_activations=model.activation_checkpointing,
        cpu_offload=model.cpu_offload,
        chunk_tokens=model.logprob_chunk_tokens,
        is_gpu=is_gpu,
    )


def step_cost(cfg: Any, setup: TrainerSetup) -> StepCost:
    """Upper bounds of one step, from the configuration."""
    rollout, rubrics, judge = cfg.rollout, cfg.rubrics, cfg.judge
    episodes = rollout.tasks_per_step * rollout.rollouts_per_task
    tokens = episodes * rollout.context_tokens
    batch = setup.micro_batch_tokens * setup.num_replicas
    is_judged = rubrics.mode != "none"
    parts = 1
    if is_judged and judge.rubrics_per_request is not None:
        parts = math.ceil(rubrics.max_pairs / judge.rubrics_per_request)
    calls = episodes * parts * is_judged
    evolves = rubrics.mode in ("dynamic", "frozen")
    return StepCost(
        episodes=episodes,
        tokens=tokens,
        micro_batches=max(1, math.ceil(tokens / batch)),
        judge_calls=calls,
        judge_tokens=calls * judge.trace_budget_tokens if is_judged else 0,
        reflection_calls=(1 + rubrics.max_pairs) if evolves else 0,
        update_interval=rubrics.update_interval if evolves else 0,
    )


def _places(
    cfg: Any, engine: Any, setup: TrainerSetup, at_once: int, num_tasks: int
) -> Iterator[tuple[str, str]]:
    trainer = cfg.trainer
    yield "tasks", f"{num_tasks} for training"
    split = f"{setup.num_replicas} replicas"
    if setup.sequence_parallel * setup.tensor_parallel > 1:
        split += (
            f" x {setup.sequence_parallel} sequence-parallel x {setup.tensor_parallel} "
            "tensor-parallel"
        )
    yield (
        "trainer",
        f"{setup.num_ranks} processes, {trainer.devices} on each of {trainer.num_nodes} nodes "
        f"({trainer.accelerator}): {split}",
    )
    yield "engine", _engine_place(engine)
    yield "sandboxes", _sandbox_place(cfg.environment, at_once)
    for group in ("judge", "reflection"):
        yield group, _chat_place(cfg[group], group, mode=cfg.rubrics.mode)
    yield "run folder", f"{cfg.paths.output_dir}/{cfg.experiment_name}/<time>"


def _engine_place(engine: Any) -> str:
    if "urls" not in engine:
        return f"in process 0, on {engine.device}, {engine.dtype}"
    if engine.urls:
        return f"vLLM, {len(engine.urls)} running servers: {', '.join(engine.urls)}"
    devices = engine.devices
    where = "all CUDA devices" if devices is None else f"devices {list(devices)}"
    return f"vLLM, one server that process 0 starts here, on {where}, {engine.dtype}"


def _sandbox_place(environment: Any, at_once: int) -> str:
    if "candidates" in environment:
        return f"{' or '.join(environment.candidates)}, whatever works first; {at_once} at once"
    kind = environment._target_.rpartition(".")[2].removesuffix("Factory").lower()
    gib = at_once * environment.memory_mb / 1024
    hosts = list(environment.get("hosts") or ())
    where = f"on {len(hosts)} Docker hosts" if hosts else "on the machine of process 0"
    return (
        f"{kind}, {where}: {at_once} at once, {environment.memory_mb} MiB each unless a task says "
        f"otherwise, {gib:,.1f} GiB if all use that"
    )


def _chat_place(group: Any, name: str, *, mode: str) -> str:
    if mode == "none" or (name == "reflection" and mode in ("static", "ruscarl")):
        return "not used"
    if "base_url" not in group:
        return f"{group._target_.rpartition('.')[2]}, in process 0, no endpoint"
    return f"{group.model} at {group.base_url}, {group.max_concurrency} requests at once"


def _server_devices(engine: Any) -> int:
    """Devices of one vLLM server, as its arguments say."""
    args = [str(arg) for arg in engine.get("args") or ()]
    for index, flag in enumerate(args):
        if flag == _TENSOR_PARALLEL_FLAG and index + 1 < len(args):
            return int(args[index + 1])
        if flag.startswith(f"{_TENSOR_PARALLEL_FLAG}="):
            return int(flag.partition("=")[2])
    return 1
