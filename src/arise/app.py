"""The composition root: the only place that knows every part.

`train` validates first and imports what is heavy afterwards, so a mistake costs no seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.folder import (
    RunFolder,
    checkpoint_step,
    is_first_process,
    make_run_folder,
    share_run_folder,
)
from arise.runs.resume import find_run, finished_message, is_finished, record_config
from arise.validation import validate

if TYPE_CHECKING:
    from lightning import Callback, Trainer

    from arise.callbacks.evaluation import EvaluationCallback
    from arise.inference.base import SamplingParams
    from arise.types import Task

log = logging.getLogger(__name__)


def train(cfg: DictConfig, *, overrides: Sequence[str] = ()) -> None:
    """Train as configured; see `configs/train.yaml`.

    Args:
        cfg: The composed configuration.
        overrides: The command line's overrides, for the record.

    Raises:
        ConfigError: The configuration is impossible; nothing has been written.
        KeyboardInterrupt: Interrupted; a checkpoint of the last finished iteration exists.
    """
    validate(cfg)
    OmegaConf.resolve(cfg)
    resumed = find_run(cfg)
    try:
        if resumed is not None and is_finished(resumed, cfg.trainer.max_steps):
            print(finished_message(resumed, cfg.trainer.max_steps))
            return
        tasks = _load_tasks(cfg.datamodule)
        _set_up_logging(quiet=cfg.quiet)
        _say(cfg, f"{len(tasks)} training tasks")
        run = Run(cfg, tasks, overrides=list(overrides), resumed=resumed)
        try:
            run.fit()
        finally:
            run.close()
    finally:
        if resumed is not None:
            resumed.release()


class Run:
    """Everything one training run holds, built in the order in which parts need each other."""

    def __init__(
        self,
        cfg: DictConfig,
        tasks: list[Task],
        *,
        overrides: list[str],
        resumed: RunFolder | None = None,
    ) -> None:
        import torch
        from lightning import seed_everything

        from arise.agents.orchestrator import Orchestrator
        from arise.agents.rendering import ChatRenderer
        from arise.aio import EventLoopThread

        self.cfg = cfg
        self.environments = _build(cfg.environment)
        self.environments.check()
        self.tasks = _require_supported(tasks, self.environments)
        loader = _build(cfg.model.loader)
        harness = _build(cfg.harness)
        renderer = ChatRenderer(loader.tokenizer(), observation_role=harness.observation_role)
        # The global generator initialises weights only; rollouts and sampler have their own.
        seed_everything(cfg.seed, workers=True, verbose=False)
        if cfg.rollout.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        self.folder = resumed or make_run_folder(cfg, overrides=overrides)
        if resumed is not None:
            record_config(resumed, cfg, overrides)
        share_run_folder(self.folder)
        self.loader = loader
        self.loop = EventLoopThread()
        self.engine = _build(
            cfg.engine, model=loader.empty_model, max_context_tokens=cfg.rollout.context_tokens
        )
        self.orchestrator = Orchestrator(
            engine=self.engine,
            environments=self.environments,
            harness=harness,
            renderer=renderer,
            context_tokens=cfg.rollout.context_tokens,
            max_in_flight=cfg.rollout.max_in_flight,
            default_timeout_s=cfg.rollout.agent_timeout_s,
            deterministic=cfg.rollout.deterministic,
            seed=cfg.seed,
        )
        self.judge, rubrics, self.chat_models = _build_rubrics(cfg)
        self.curriculum = _build_curriculum(cfg, self.tasks, rubrics)

    def fit(self) -> None:
        """Train to the configured step and say where everything is."""
        from lightning.pytorch.trainer.states import TrainerStatus

        from arise.callbacks.checkpoint import RestoreGuard
        from arise.datamodules.tasks import TaskDataModule

        checkpoint = self.folder.checkpoint
        guard = RestoreGuard(checkpoint)
        trainer = self._trainer([guard, *self._callbacks()])
        datamodule = TaskDataModule(
            curriculum=self.curriculum, max_steps=self.cfg.trainer.max_steps
        )
        _say(self.cfg, f"run folder {self.folder.path}")
        try:
            with guard.explained():
                trainer.fit(
                    self._module(),
                    datamodule=datamodule,
                    ckpt_path=None if checkpoint is None else str(checkpoint),
                )
        except SystemExit as error:
            if trainer.state.status == TrainerStatus.INTERRUPTED:
                raise KeyboardInterrupt from error
            raise

    def close(self) -> None:
        """Stop engine, sandboxes, event loop and process group; safe after any failure."""
        from torch import distributed

        self.loop.run(self.engine.stop())
        self.loop.close()
        self.environments.close()
        self.folder.release()
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _module(self) -> Any:
        from hydra.utils import instantiate

        from arise.modules.lora import LoraOptions
        from arise.modules.policy import PolicyModule

        algorithm, model = self.cfg.algorithm, self.cfg.model
        return PolicyModule(
            loader=self.loader,
            optimizer=instantiate(algorithm.optimizer),
            warmup_steps=algorithm.warmup_steps,
            max_grad_norm=algorithm.max_grad_norm,
            loss_order=algorithm.loss_order,
            dual_clip=algorithm.dual_clip,
            ratio_low=algorithm.ratio_low,
            ratio_high=algorithm.ratio_high,
            max_initial_ratio_error=algorithm.max_initial_ratio_error,
            temperature=self.cfg.rollout.temperature,
            compute_dtype=model.compute_dtype,
            layout=model.layout,
            chunk_tokens=model.logprob_chunk_tokens,
            activation_checkpointing=model.activation_checkpointing,
            lora=LoraOptions(**model.lora, seed=self.cfg.seed) if model.lora.rank else None,
        )

    def _trainer(self, callbacks: list[Callback]) -> Trainer:
        from hydra.utils import instantiate

        try:
            return instantiate(
                self.cfg.trainer, callbacks=callbacks, logger=self._loggers() or False
            )
        except TypeError as error:
            raise ConfigError(f"trainer: {error}") from error

    def _loggers(self) -> list[Any]:
        """Loggers that write into the run's folder; a resumed run's old points are purged."""
        from hydra.utils import instantiate

        loggers = []
        for name, node in self.cfg.logger.items():
            options: dict[str, Any] = {"save_dir": str(self.folder.path / name)}
            if name == "tensorboard" and self.folder.checkpoint is not None:
                options["purge_step"] = checkpoint_step(self.folder.checkpoint) + 1
            loggers.append(instantiate(node, **options))
        return loggers

    def _callbacks(self) -> list[Callback]:
        """In hook order: roll out, learn about it, record it, show it, save it."""
        from arise.algorithms.credit import CreditOptions
        from arise.callbacks.checkpoint import StepCheckpoint
        from arise.callbacks.coevolution import CoEvolutionCallback
        from arise.callbacks.export import ExportCallback
        from arise.callbacks.monitoring import MonitoringCallback, ProgressCallback
        from arise.callbacks.recorder import RecorderCallback
        from arise.callbacks.rollouts import RolloutCallback
        from arise.callbacks.summary import SummaryCallback

        cfg, algorithm = self.cfg, self.cfg.algorithm
        callbacks: list[Callback] = [
            RolloutCallback(
                loop=self.loop,
                engine=self.engine,
                orchestrator=self.orchestrator,
                curriculum=self.curriculum,
                judge=self.judge,
                credit=CreditOptions(
                    rubric_weight=algorithm.rubric_weight,
                    std=algorithm.std,
                    epsilon=algorithm.epsilon,
                    length_alpha=algorithm.length_alpha,
                    length_threshold_tokens=algorithm.length_threshold_tokens,
                ),
                sampling=_sampling(cfg.rollout),
                rollouts_per_task=cfg.rollout.rollouts_per_task,
                micro_batch_tokens=algorithm.micro_batch_tokens,
                max_lost_iterations=cfg.rollout.max_lost_iterations,
            ),
            CoEvolutionCallback(
                loop=self.loop,
                curriculum=self.curriculum,
                judge=self.judge,
                models=self.chat_models,
                quiet=cfg.quiet,
            ),
        ]
        evaluation = self._evaluation()
        callbacks += evaluation
        callbacks += [
            RecorderCallback(
                folder=self.folder,
                curriculum=self.curriculum,
                evaluation=next(iter(evaluation), None),
            ),
            MonitoringCallback(curriculum=self.curriculum),
            ProgressCallback(quiet=cfg.quiet),
            ExportCallback(folder=self.folder.final_model, loader=self.loader),
            SummaryCallback(
                folder=self.folder,
                curriculum=self.curriculum,
                evaluation=next(iter(evaluation), None),
                quiet=cfg.quiet,
            ),
            StepCheckpoint(folder=self.folder.checkpoints, **cfg.callbacks.checkpoint),
        ]
        return callbacks

    def _evaluation(self) -> list[EvaluationCallback]:
        from arise.callbacks.evaluation import EvaluationCallback

        evaluation = self.cfg.evaluation
        if evaluation.eval_interval is None:
            return []
        tasks = _require_supported(_load_tasks(evaluation), self.environments)
        return [
            EvaluationCallback(
                loop=self.loop,
                orchestrator=self.orchestrator,
                tasks=tasks,
                eval_interval=evaluation.eval_interval,
                attempts_per_task=evaluation.attempts_per_task,
                sampling=_sampling(evaluation),
                quiet=self.cfg.quiet,
            )
        ]


def _build(node: DictConfig, **extra: Any) -> Any:
    """The object that a `_target_` node describes, with what only the program can give."""
    from hydra.utils import instantiate

    return instantiate(OmegaConf.to_container(node, resolve=True), **extra)


def _build_rubrics(cfg: DictConfig) -> tuple[Any, Any, tuple[Any, ...]]:
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
    judge_model, reflection_model = _build(cfg.judge), _build(cfg.reflection)
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
    from dataclasses import replace
    from pathlib import Path

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


def _build_curriculum(cfg: DictConfig, tasks: Sequence[Task], rubrics: Any) -> Any:
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


def _load_tasks(group: DictConfig) -> list[Task]:
    """The corpus of a group: the user's folders, or what its generator writes."""
    from arise.tasks.corpus import load_corpus

    corpus = group.corpus
    if corpus is None:
        corpus = str(_build(group.generator))
    return load_corpus(
        corpus if isinstance(corpus, str) else list(corpus),
        # A held-out set with holes would give another figure without saying so.
        on_broken=group.get("on_broken", "fail"),
    )


def _require_supported(tasks: list[Task], environments: Any) -> list[Task]:
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


def _sampling(group: DictConfig) -> SamplingParams:
    from arise.inference.base import SamplingParams

    return SamplingParams(temperature=group.temperature, top_p=group.top_p, top_k=group.top_k)


def _set_up_logging(*, quiet: bool) -> None:
    """Our own messages on the terminal; of the libraries, errors only."""
    import warnings

    from transformers.utils import logging as transformers_logging

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("arise").setLevel(logging.WARNING if quiet else logging.INFO)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    # Lightning sets its own level when it is imported.
    import lightning  # noqa: F401

    for noisy in ("lightning.pytorch", "lightning.fabric", "httpx"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def _say(cfg: DictConfig, text: str) -> None:
    if not cfg.quiet and is_first_process():
        print(text, flush=True)
