"""The composition root: the only place that knows every part.

`train` validates first and imports what is heavy afterwards, so a mistake costs no seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from arise.assembly import (
    build,
    build_curriculum,
    build_engine,
    build_loggers,
    build_rubrics,
    build_variant,
    load_tasks,
    require_supported,
)
from arise.assembly_rollouts import build_asynchronous, build_credit, sampling_of
from arise.dry_run import dry_run
from arise.errors import ConfigError
from arise.rollout_sizes import max_episodes
from arise.runs.folder import (
    RunFolder,
    is_first_process,
    make_run_folder,
    share_run_folder,
)
from arise.runs.resume import find_run, finished_message, is_finished
from arise.terminal import set_up_logging
from arise.validation import validate

if TYPE_CHECKING:
    from lightning import Callback, Trainer

    from arise.callbacks.evaluation import EvaluationCallback
    from arise.callbacks.references import InitialPolicy
    from arise.callbacks.rollouts import RolloutCallback
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
    if cfg.dry_run:
        dry_run(cfg)
        return
    resumed = find_run(cfg)
    try:
        if resumed is not None and is_finished(resumed, cfg.trainer.max_steps):
            print(finished_message(resumed, cfg.trainer.max_steps))
            return
        tasks = load_tasks(cfg.datamodule)
        set_up_logging(quiet=cfg.quiet)
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
        from arise.callbacks.watch import make_watch

        self.cfg = cfg
        self.environments = build(cfg.environment)
        self.environments.check()
        self.tasks = require_supported(tasks, self.environments)
        loader = build(cfg.model.loader)
        harness = build(cfg.harness)
        renderer = ChatRenderer(loader.tokenizer(), observation_role=harness.observation_role)
        # The global generator initialises weights only; rollouts and sampler have their own.
        seed_everything(cfg.seed, workers=True, verbose=False)
        if cfg.rollout.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        self.folder = resumed or make_run_folder(cfg, overrides=overrides)
        self.overrides = overrides
        share_run_folder(self.folder)
        self.loader = loader
        self.harness = harness
        self.loop = EventLoopThread()
        self.engine = build_engine(cfg, model=loader.empty_model, folder=self.folder.path)
        self.orchestrator = Orchestrator(
            engine=self.engine,
            environments=self.environments,
            harness=harness,
            renderer=renderer,
            context_tokens=cfg.rollout.context_tokens,
            max_in_flight=max_episodes(cfg),
            default_timeout_s=cfg.rollout.agent_timeout_s,
            deterministic=cfg.rollout.deterministic,
            seed=cfg.seed,
        )
        self.judge, rubrics, self.chat_models = build_rubrics(
            cfg, cache_path=self.folder.verdict_cache
        )
        self.curriculum = build_curriculum(cfg, self.tasks, rubrics)
        self.variant = build_variant(cfg, self.judge, self.chat_models)
        self.asynchronous = build_asynchronous(self)
        self.watching = make_watch(cfg.callbacks.watch, self.folder.path)

    def fit(self) -> None:
        """Train to the configured step and say where everything is."""
        from lightning.pytorch.trainer.states import TrainerStatus

        from arise.callbacks.checkpoint import RestoreGuard
        from arise.datamodules.tasks import TaskDataModule

        checkpoint = self.folder.checkpoint
        guard = RestoreGuard(checkpoint)
        trainer = self._trainer([guard, self.watching, *self._callbacks()])
        datamodule = TaskDataModule(
            curriculum=self.curriculum,
            max_steps=self.cfg.trainer.max_steps,
            draws=self.asynchronous is None,
        )
        _say(self.cfg, f"run folder {self.folder.path}")
        try:
            with guard.explained(), self.watching.explained():
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

        self.watching.watch.stop()
        self.loop.run(self.engine.stop())
        self.loop.run(self.harness.stop())
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
            sequence_parallel=model.sequence_parallel,
            cpu_offload=model.cpu_offload,
            lora=LoraOptions(**model.lora, seed=self.cfg.seed) if model.lora.rank else None,
        )

    def _trainer(self, callbacks: list[Callback]) -> Trainer:
        from hydra.utils import instantiate

        try:
            return instantiate(
                self.cfg.trainer,
                callbacks=callbacks,
                logger=build_loggers(self.cfg, self.folder.path) or False,
            )
        except TypeError as error:
            raise ConfigError(f"trainer: {error}") from error

    def _callbacks(self) -> list[Callback]:
        """In hook order: roll out, learn about it, record it, show it, save it."""
        from arise.callbacks.board import BoardCallback
        from arise.callbacks.checkpoint import StepCheckpoint
        from arise.callbacks.coevolution import CoEvolutionCallback
        from arise.callbacks.continuation import ContinuationCallback
        from arise.callbacks.display import RunState, make_display, playing_of
        from arise.callbacks.export import ExportCallback
        from arise.callbacks.monitoring import MonitoringCallback
        from arise.callbacks.placement import PlacementCallback
        from arise.callbacks.progress import PhaseCallback, ProgressCallback
        from arise.callbacks.recorder import RecorderCallback
        from arise.callbacks.summary import SummaryCallback

        cfg = self.cfg
        display = make_display(
            lambda: playing_of(self.orchestrator, self.asynchronous), quiet=cfg.quiet
        )
        state = RunState(max_steps=cfg.trainer.max_steps)
        callbacks: list[Callback] = [
            PhaseCallback(display, state),
            self._rollouts(),
            CoEvolutionCallback(
                loop=self.loop,
                curriculum=self.curriculum,
                judge=self.judge,
                models=self.chat_models,
                quiet=cfg.quiet,
            ),
        ]
        evaluation = self._evaluation()
        evaluated = next(iter(evaluation), None)
        callbacks += evaluation
        if self.folder.checkpoint is not None:
            # After engine and judge have been reached: till then nothing is given up.
            callbacks.append(
                ContinuationCallback(folder=self.folder, cfg=cfg, overrides=self.overrides)
            )
        callbacks += [
            RecorderCallback(folder=self.folder, curriculum=self.curriculum, evaluation=evaluated),
            MonitoringCallback(curriculum=self.curriculum),
            BoardCallback(),
            ProgressCallback(display, state),
            PlacementCallback(self.engine, self.environments, self.watching.watch),
            ExportCallback(
                folder=self.folder.final_model,
                tokenizer_folder=self.folder.tokenizer,
                loader=self.loader,
            ),
            SummaryCallback(
                folder=self.folder,
                curriculum=self.curriculum,
                evaluation=evaluated,
                quiet=cfg.quiet,
            ),
            StepCheckpoint(folder=self.folder.checkpoints, **cfg.callbacks.checkpoint),
        ]
        return callbacks

    def _rollouts(self) -> RolloutCallback:
        from arise.callbacks.rollouts import RolloutCallback

        rollout = self.cfg.rollout
        return RolloutCallback(
            loop=self.loop,
            engine=self.engine,
            orchestrator=self.orchestrator,
            curriculum=self.curriculum,
            judge=self.judge,
            credit=build_credit(self.cfg),
            sampling=sampling_of(rollout),
            rollouts_per_task=rollout.rollouts_per_task,
            micro_batch_tokens=self.cfg.algorithm.micro_batch_tokens,
            max_lost_iterations=rollout.max_lost_iterations,
            variant=self.variant,
            references=self._references(),
            asynchronous=self.asynchronous,
            watch=self.watching.watch,
        )

    def _references(self) -> InitialPolicy | None:
        """Rollouts of the initial policy, for the baseline that compares with them."""
        from arise.callbacks.references import InitialPolicy

        online = self.variant.online
        if online is None or online.options.reference != "initial_policy":
            return None
        return InitialPolicy(
            engine=self.engine,
            orchestrator=self.orchestrator,
            loader=self.loader,
            sampling=sampling_of(self.cfg.rollout),
            rollouts_per_task=min(
                online.options.pairs_per_task, self.cfg.rollout.rollouts_per_task
            ),
        )

    def _evaluation(self) -> list[EvaluationCallback]:
        from arise.callbacks.evaluation import EvaluationCallback

        evaluation = self.cfg.evaluation
        if evaluation.eval_interval is None:
            return []
        tasks = require_supported(load_tasks(evaluation), self.environments)
        return [
            EvaluationCallback(
                loop=self.loop,
                orchestrator=self.orchestrator,
                tasks=tasks,
                extra={
                    str(name): require_supported(load_tasks(node), self.environments)
                    for name, node in evaluation.extra.items()
                },
                eval_interval=evaluation.eval_interval,
                attempts_per_task=evaluation.attempts_per_task,
                sampling=sampling_of(evaluation),
                quiet=self.cfg.quiet,
            )
        ]


def _say(cfg: DictConfig, text: str) -> None:
    if not cfg.quiet and is_first_process():
        print(text, flush=True)
