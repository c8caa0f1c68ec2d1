"""The composition root of an evaluation; see `configs/evaluate.yaml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from arise.assembly import build, build_engine, require_supported
from arise.errors import ConfigError
from arise.validation import validate_loader, validate_values

if TYPE_CHECKING:
    from arise.aio import EventLoopThread
    from arise.evaluation.report import Report
    from arise.types import Task


def evaluate(cfg: DictConfig, *, overrides: Sequence[str] = ()) -> Report:
    """Play the attempts that are missing, and write the report.

    Args:
        cfg: The composed configuration; see `configs/evaluate.yaml`.
        overrides: The command line's overrides, for the record.

    Returns:
        The figures, which are printed and written too.

    Raises:
        ConfigError: The configuration is impossible; nothing has been written.
        KeyboardInterrupt: Interrupted; finished attempts are kept.
    """
    OmegaConf.set_struct(cfg, False)
    for key, value in cfg.benchmark.harness.items():
        if key in cfg.harness:
            cfg.harness[key] = value
    OmegaConf.set_struct(cfg, True)
    check(cfg)
    OmegaConf.resolve(cfg)
    tasks = _tasks(cfg)
    environments = build(cfg.environment)
    try:
        environments.check()
        tasks = require_supported(tasks, environments)
        return _evaluate(cfg, tasks, environments, overrides)
    finally:
        environments.close()


def check(cfg: DictConfig) -> None:
    """Check a composed configuration; needs nothing heavy.

    Raises:
        ConfigError: The first problem found.
    """
    from arise.tasks.corpus import has_task

    path = OmegaConf.select(cfg, "benchmark.path", throw_on_missing=False)
    if OmegaConf.is_missing(cfg.benchmark, "path"):
        raise ConfigError(
            f"benchmark.path is not given: {cfg.benchmark.name} is not shipped; set "
            "benchmark.path=<folder with your copy of its tasks>"
        )
    for folder in [path] if isinstance(path, str) else list(path or ()):
        if not Path(folder).is_dir() or not has_task(Path(folder)):
            raise ConfigError(
                f"benchmark.path: {folder!r} is no folder with tasks of {cfg.benchmark.name}; give "
                "the folder of your copy"
            )
    if path is None and cfg.benchmark.generator is None:
        raise ConfigError("benchmark.path is empty; give a folder of tasks")
    validate_values(cfg)
    if "base_url" not in cfg.model:
        validate_loader(cfg)
    elif cfg.context_tokens is None:
        raise ConfigError(
            "context_tokens: an endpoint does not tell its context; set context_tokens=<number>"
        )
    if cfg.checkpoint is not None and not Path(cfg.checkpoint).is_dir():
        raise ConfigError(f"checkpoint: {cfg.checkpoint!r} is no checkpoint folder of a run")


def _tasks(cfg: DictConfig) -> list[Task]:
    """The benchmark's tasks, with its time limit."""
    from arise.tasks.corpus import load_corpus

    benchmark = cfg.benchmark
    path = benchmark.path
    if path is None:
        path = str(build(benchmark.generator))
    tasks = load_corpus(list(path) if isinstance(path, ListConfig) else path, on_broken="fail")
    if benchmark.agent_timeout_s is not None:
        tasks = [replace(task, agent_timeout_s=benchmark.agent_timeout_s) for task in tasks]
    return tasks


def _evaluate(
    cfg: DictConfig, tasks: list[Task], environments: Any, overrides: Sequence[str]
) -> Report:
    from arise.aio import EventLoopThread
    from arise.evaluation.attempts import AttemptLog
    from arise.evaluation.benchmark import play
    from arise.evaluation.report import as_markdown, make_report, write_report

    log = AttemptLog(_folder(cfg), _settings(cfg, tasks), resume=cfg.resume)
    if cfg.retry_errors:
        log.forget_errors()
    num_missing = len(tasks) * cfg.benchmark.attempts - len(log.attempts)
    if num_missing:
        loop = EventLoopThread()
        try:
            parts = _Parts(cfg, environments, loop, log.folder)
            try:
                loop.run(
                    play(
                        parts.orchestrator,
                        tasks,
                        log,
                        num_attempts=cfg.benchmark.attempts,
                        sampling=parts.sampling,
                        names=(_harness_name(cfg), cfg.name),
                        quiet=cfg.quiet,
                    )
                )
            finally:
                loop.run(parts.engine.stop())
                loop.run(parts.harness.stop())
        finally:
            loop.close()
    attempts = list(log.attempts.values())
    title = f"{cfg.name} ({_harness_name(cfg)})"
    report = make_report(title, attempts, num_attempts=cfg.benchmark.attempts)
    write_report(report, attempts, log.folder)
    print(f"{as_markdown(report)}\nwritten to {log.folder}", flush=True)
    return report


class _Parts:
    """Engine, harness and orchestrator for one model."""

    def __init__(
        self, cfg: DictConfig, environments: Any, loop: EventLoopThread, folder: Path
    ) -> None:
        from arise.agents.endpoint import EndpointEngine, EndpointSession, TextRenderer
        from arise.agents.orchestrator import Orchestrator
        from arise.agents.rendering import ChatRenderer
        from arise.inference.base import SamplingParams
        from arise.llm.endpoint import ChatEndpoint

        benchmark = cfg.benchmark
        self.harness = build(cfg.harness)
        self.sampling = SamplingParams(
            temperature=benchmark.temperature, top_p=benchmark.top_p, top_k=benchmark.top_k
        )
        more: dict[str, Any] = {}
        if "base_url" in cfg.model:
            options = OmegaConf.to_container(cfg.model)
            assert isinstance(options, dict)
            options.pop("name")
            endpoint = ChatEndpoint(**{str(key): value for key, value in options.items()})
            self.engine: Any = EndpointEngine(endpoint, max_context_tokens=cfg.context_tokens)
            renderer: Any = TextRenderer()
            context = cfg.context_tokens
            more["make_session"] = functools.partial(EndpointSession, endpoint=endpoint)
        else:
            self.engine, renderer, context = self._own_model(cfg, loop, folder, ChatRenderer)
        self.orchestrator = Orchestrator(
            engine=self.engine,
            environments=environments,
            harness=self.harness,
            renderer=renderer,
            context_tokens=context,
            max_in_flight=cfg.max_in_flight,
            default_timeout_s=benchmark.default_timeout_s,
            deterministic=cfg.deterministic,
            seed=cfg.seed,
            **more,
        )

    def _own_model(
        self, cfg: DictConfig, loop: EventLoopThread, folder: Path, make_renderer: Any
    ) -> tuple[Any, Any, int]:
        """Engine with the model's weights, renderer, and context."""
        loader = build(cfg.model.loader)
        model = loader.model()
        if cfg.checkpoint is not None:
            from arise.modules.checkpoint_weights import load_checkpoint_weights

            load_checkpoint_weights(model, Path(cfg.checkpoint))
        native = getattr(model.config, "max_position_embeddings", None)
        context = cfg.context_tokens or native
        if context is None:
            raise ConfigError("context_tokens: the model names none; set context_tokens=<number>")
        renderer = make_renderer(loader.tokenizer(), observation_role=self.harness.observation_role)
        engine = build_engine(_with_context(cfg, context), model=loader.empty_model, folder=folder)
        loop.run(engine.start())
        loop.run(engine.load_weights(dict(model.state_dict()), version=0))
        return engine, renderer, context


def _with_context(cfg: DictConfig, context: int) -> DictConfig:
    """What building an engine reads, with the context in the place where training has it."""
    return OmegaConf.create(
        {"engine": OmegaConf.to_container(cfg.engine), "rollout": {"context_tokens": context}}
    )


def _harness_name(cfg: DictConfig) -> str:
    target = str(cfg.harness.get("_target_", "")).rpartition(".")[2]
    return str(cfg.harness.get("name") or target)


def _folder(cfg: DictConfig) -> Path:
    names = (str(cfg.name), _harness_name(cfg))
    safe = "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", name).strip("_") for name in names)
    return Path(cfg.paths.output_dir) / "evaluations" / cfg.benchmark.name / safe


def _settings(cfg: DictConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """What the figures depend on: an evaluation goes on only under the same."""
    chosen = ("model", "checkpoint", "context_tokens", "harness", "benchmark", "seed")
    whole = OmegaConf.to_container(cfg)
    assert isinstance(whole, dict)
    return {
        **{key: whole[key] for key in chosen},
        "environment": whole["environment"].get("_target_"),
        "task_ids": sorted(task.id for task in tasks),
    }
