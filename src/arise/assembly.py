"""From configuration groups to the parts of a run that need no trainer.

Heavy packages are imported inside the functions, so that importing this module costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError, one_line

if TYPE_CHECKING:
    from arise.types import Task

log = logging.getLogger(__name__)


def build(node: DictConfig, **extra: Any) -> Any:
    """The object that a `_target_` node describes, with what only the program can give."""
    from hydra.utils import instantiate

    return instantiate(OmegaConf.to_container(node, resolve=True), **extra)


# Keys of the judge group that say how to judge; the others make the chat model.
_JUDGING = (
    "rubrics_per_request",
    "trace_budget_tokens",
    "max_calls_per_iteration",
    "on_outage",
    "give_up_after",
    "alarm_after",
)


def build_engine(cfg: DictConfig, *, model: Callable[..., Any], folder: Path) -> Any:
    """The engine that is configured, or for `engine=auto` the better one on this machine.

    Args:
        cfg: The whole configuration.
        model: Builds an empty model of the policy's architecture.
        folder: The run's, for the log of a server of our own.
    """
    from arise.inference.auto import best_engine

    node = cfg.engine
    if "candidates" in node:
        node = node.candidates[best_engine(list(map(str, node.candidates)))]
    own = {"log_path": folder / "vllm.log"} if "urls" in node else {}
    return build(node, model=model, max_context_tokens=cfg.rollout.context_tokens, **own)


def build_rubrics(
    cfg: DictConfig, *, cache_path: Path | None = None
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Judge, pool with its life cycle, and the chat models behind them; nothing without rubrics.

    Args:
        cfg: The whole configuration.
        cache_path: Where verdicts are kept if `judge.cache` is set.
    """
    from arise.curriculum.curriculum import RubricParts
    from arise.rubrics.diagnostics import EvidenceBuffer
    from arise.rubrics.evolution import Evolution
    from arise.rubrics.pool import RubricPool
    from arise.rubrics.prompting import Prompts
    from arise.rubrics.reflection import Reflection

    rubrics = cfg.rubrics
    if rubrics.mode == "none":
        return None, None, ()
    prompts = Prompts(directory=rubrics.prompts_dir)
    judge = _build_judge(cfg.judge, prompts, cache_path)
    is_static = rubrics.mode in ("static", "ruscarl")
    reflection_model, prices = None, None
    if not is_static:
        reflection_model, prices = _build_chat_model(cfg.reflection, "reflection")
    models = tuple(model for model in (judge.model, reflection_model) if model is not None)
    if rubrics.mode == "online":
        return judge, None, models
    pool = RubricPool(
        max_pairs=rubrics.max_pairs,
        max_new_pairs=rubrics.max_new_pairs,
        max_text_chars=rubrics.max_text_chars,
    )
    parts = RubricParts(
        pool=pool,
        buffer=EvidenceBuffer(
            max_records=rubrics.max_records, budget_tokens=rubrics.evidence_budget_tokens
        ),
        evolution=Evolution(
            eta_low=rubrics.eta_low,
            eta_high=rubrics.eta_high,
            update_interval=rubrics.update_interval,
        ),
        reflection=None
        if reflection_model is None
        else Reflection(model=reflection_model, prompts=prompts, prices=prices),
        inject_skills=rubrics.skills.inject,
        is_frozen=rubrics.mode == "frozen",
        is_static=is_static,
        imported=_import_pool(pool, rubrics),
    )
    return judge, parts, models


def _build_judge(group: DictConfig, prompts: Any, cache_path: Path | None) -> Any:
    """The judge of a configuration group: its chat model, and how it is asked."""
    from arise.rubrics.judge import Judge, JudgeOptions
    from arise.rubrics.verdict_cache import VerdictCache

    node = group.copy()
    OmegaConf.set_struct(node, False)
    options: dict[str, Any] = {key: node.pop(key) for key in _JUDGING}
    is_cached = node.pop("cache")
    options["max_concurrency"] = node.max_concurrency
    if "timeout_s" not in node:  # a model without an endpoint bounds nothing itself
        node.pop("max_concurrency")
    model, prices = _build_chat_model(node, "judge")
    return Judge(
        model=model,
        prompts=prompts,
        options=JudgeOptions(**options, prices=prices),
        cache=VerdictCache(cache_path) if is_cached and cache_path is not None else None,
    )


def _build_chat_model(group: DictConfig, key: str) -> tuple[Any, Any]:
    """A chat model and what it charges; `None` if that is not known."""
    from arise.llm.usage import TokenPrices

    node = group.copy()
    OmegaConf.set_struct(node, False)
    prices = node.pop("prices", None) or {}
    return build(node), TokenPrices.from_config(prices, key=f"{key}.prices")


def _import_pool(pool: Any, rubrics: DictConfig) -> tuple[Any, ...]:
    """Take over another run's pool: as it ended, or for a fixed pool every pair it ever had."""
    from arise.rubrics.events import lifetime_pairs, read_events, replay
    from arise.rubrics.pool_file import pool_file

    if rubrics.pool_path is None:
        return ()
    path = pool_file(rubrics.pool_path)
    events = read_events(path, key="rubrics.pool_path")
    if rubrics.mode != "dynamic":
        pairs = lifetime_pairs(events, where=str(path))
    else:
        last = replay(events, where=str(path))
        pairs = tuple(replace(pair, created_at=0, history=()) for pair in last.values())
    if not pairs:
        raise ConfigError(f"rubrics.pool_path: {path} holds no pair")
    return tuple(pool.import_pairs(pairs))


def build_variant(cfg: DictConfig, judge: Any, models: Sequence[Any]) -> Any:
    """What a baseline or control does otherwise than the method.

    Args:
        cfg: The whole configuration.
        judge: From `build_rubrics`.
        models: Chat models of judge and reflection, from `build_rubrics`.
    """
    from arise.llm.usage import TokenPrices
    from arise.rubrics.elicitation import Elicitation
    from arise.rubrics.online import OnlineOptions, OnlineRubrics
    from arise.rubrics.scaffold import Scaffold
    from arise.rubrics.variant import Variant

    rubrics = cfg.rubrics
    scaffold, online = None, None
    if rubrics.mode == "ruscarl":
        options = {str(key): value for key, value in rubrics.scaffold.items() if key != "strip"}
        scaffold = Scaffold(seed=cfg.seed, **options)
    if rubrics.mode == "online":
        prices = cfg.reflection.get("prices") or {}
        online = OnlineRubrics(
            elicitation=Elicitation(
                model=models[-1],
                prompts_dir=rubrics.prompts_dir,
                prices=TokenPrices.from_config(prices, key="reflection.prices"),
            ),
            judge=judge,
            options=OnlineOptions(
                reference=rubrics.online.reference,
                pairs_per_task=rubrics.online.pairs_per_task,
                max_criteria=rubrics.online.max_criteria,
                trace_budget_tokens=cfg.judge.trace_budget_tokens,
            ),
        )
    return Variant(
        scaffold=scaffold,
        strips_scaffold=scaffold is not None and rubrics.scaffold.strip,
        online=online,
        shuffle_seed=cfg.seed if rubrics.verdicts == "shuffled" else None,
    )


def build_curriculum(cfg: DictConfig, tasks: Sequence[Task], rubrics: Any) -> Any:
    """Sampler and pool as configured, owned by one curriculum."""
    from arise.curriculum.curriculum import Curriculum

    return Curriculum(
        sampler=_build_sampler(cfg, tasks),
        tasks_per_step=cfg.rollout.tasks_per_step,
        seed=cfg.seed,
        rubrics=rubrics,
    )


def _build_sampler(cfg: DictConfig, tasks: Sequence[Task]) -> Any:
    """One of the three by its name, or whatever class the group's `_target_` names."""
    from arise.curriculum.factory import make_sampler

    if "_target_" in cfg.curriculum:
        # Tasks are dataclasses, which Hydra would take for configuration if it were given them.
        try:
            return build(cfg.curriculum, _partial_=True)(tasks=tasks, seed=cfg.seed)
        except TypeError as error:
            raise ConfigError(f"curriculum: {error}") from error
    options: dict[str, Any] = {str(key): value for key, value in cfg.curriculum.items()}
    return make_sampler(options.pop("sampler"), tasks=tasks, seed=cfg.seed, **options)


def build_loggers(cfg: DictConfig, folder: Path) -> list[Any]:
    """Loggers that write into the run's folder, each under its name.

    Raises:
        ConfigError: A logger's package is not installed, or it refuses its settings.
    """
    from hydra.errors import InstantiationException

    loggers = []
    for name, node in cfg.logger.items():
        try:
            loggers.append(build(node, save_dir=str(folder / str(name))))
        except (InstantiationException, ImportError) as error:
            cause = error.__cause__ or error
            raise ConfigError(f"logger.{name} cannot start: {one_line(cause)}") from error
    return loggers


def load_tasks(group: DictConfig) -> list[Task]:
    """The corpus of a group: the user's folders, or what its generator writes."""
    from arise.tasks.corpus import load_corpus
    from arise.tasks.tags import with_tags

    corpus = group.get("corpus")
    if corpus is None:
        corpus = str(build(group.generator))
    tasks = load_corpus(
        corpus if isinstance(corpus, str) else list(corpus),
        # A held-out set with holes would give another figure without saying so.
        on_broken=group.get("on_broken", "fail"),
    )
    tags = group.get("tags")
    return tasks if tags is None else with_tags(tasks, Path(tags))


def require_supported(tasks: list[Task], environments: Any) -> list[Task]:
    """Leave out tasks that this kind of sandbox cannot run, and say why.

    Raises:
        ConfigError: No task is left.
    """
    reasons = {task.id: environments.unsupported(task) for task in tasks}
    for task_id, reason in reasons.items():
        if reason is not None:
            log.warning("task %s is left out: %s", task_id, reason)
    usable = [task for task in tasks if reasons[task.id] is None]
    if not usable:
        first = next(iter(reasons.values()))
        raise ConfigError(
            f"datamodule.corpus: none of {len(tasks)} tasks can run in this environment; "
            f"the first one because: {first}"
        )
    return usable
