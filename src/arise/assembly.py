"""From configuration groups to the parts of a run that need no trainer.

Heavy packages are imported inside the functions, so that importing this module costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError

if TYPE_CHECKING:
    from arise.types import Task

log = logging.getLogger(__name__)


def build(node: DictConfig, **extra: Any) -> Any:
    """The object that a `_target_` node describes, with what only the program can give."""
    from hydra.utils import instantiate

    return instantiate(OmegaConf.to_container(node, resolve=True), **extra)


def build_rubrics(cfg: DictConfig) -> tuple[Any, Any, tuple[Any, ...]]:
    """Judge, pool with its life cycle, and the chat models behind them; nothing without rubrics."""
    from arise.curriculum.curriculum import RubricParts
    from arise.rubrics.diagnostics import EvidenceBuffer
    from arise.rubrics.evolution import Evolution
    from arise.rubrics.judge import Judge
    from arise.rubrics.pool import RubricPool
    from arise.rubrics.prompting import Prompts
    from arise.rubrics.reflection import Reflection

    rubrics = cfg.rubrics
    if rubrics.mode == "none":
        return None, None, ()
    judge_model, reflection_model = build(cfg.judge), build(cfg.reflection)
    prompts = Prompts()
    pool = RubricPool(
        max_pairs=rubrics.max_pairs,
        max_new_pairs=rubrics.max_new_pairs,
        max_text_chars=rubrics.max_text_chars,
    )
    parts = RubricParts(
        pool=pool,
        buffer=EvidenceBuffer(max_records=rubrics.max_records),
        evolution=Evolution(
            eta_low=rubrics.eta_low,
            eta_high=rubrics.eta_high,
            update_interval=rubrics.update_interval,
        ),
        reflection=Reflection(model=reflection_model, prompts=prompts),
        inject_skills=rubrics.skills.inject,
        is_frozen=rubrics.mode == "frozen",
        imported=_import_pool(pool, rubrics),
    )
    judge = Judge(
        model=judge_model,
        prompts=prompts,
        max_concurrency=rubrics.judge_concurrency,
        rubrics_per_request=rubrics.rubrics_per_request,
        trace_budget_tokens=rubrics.trace_budget_tokens,
    )
    return judge, parts, (judge_model, reflection_model)


def _import_pool(pool: Any, rubrics: DictConfig) -> tuple[Any, ...]:
    """Take over another run's pool: as it ended, or for a frozen pool every pair it ever had."""
    from arise.rubrics.events import lifetime_pairs, read_events, replay

    if rubrics.pool_path is None:
        return ()
    path = Path(rubrics.pool_path)
    events = read_events(path, key="rubrics.pool_path")
    if rubrics.mode == "frozen":
        pairs = lifetime_pairs(events, where=str(path))
    else:
        last = replay(events, where=str(path))
        pairs = tuple(replace(pair, created_at=0, history=()) for pair in last.values())
    if not pairs:
        raise ConfigError(f"rubrics.pool_path: {path} holds no pair")
    return tuple(pool.import_pairs(pairs))


def build_curriculum(cfg: DictConfig, tasks: Sequence[Task], rubrics: Any) -> Any:
    """Sampler and pool as configured, owned by one curriculum."""
    from arise.curriculum.curriculum import Curriculum
    from arise.curriculum.factory import make_sampler

    options: dict[str, Any] = {str(key): value for key, value in cfg.curriculum.items()}
    return Curriculum(
        sampler=make_sampler(options.pop("sampler"), tasks=tasks, seed=cfg.seed, **options),
        tasks_per_step=cfg.rollout.tasks_per_step,
        seed=cfg.seed,
        rubrics=rubrics,
    )


def load_tasks(group: DictConfig) -> list[Task]:
    """The corpus of a group: the user's folders, or what its generator writes."""
    from arise.tasks.corpus import load_corpus

    corpus = group.corpus
    if corpus is None:
        corpus = str(build(group.generator))
    return load_corpus(
        corpus if isinstance(corpus, str) else list(corpus),
        # A held-out set with holes would give another figure without saying so.
        on_broken=group.get("on_broken", "fail"),
    )


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
