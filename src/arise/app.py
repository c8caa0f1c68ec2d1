"""The composition root: the only place that knows every part.

`train` validates first and imports what is heavy afterwards, so a mistake costs no seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.folder import RunFolder, checkpoint_step, open_run_folder
from arise.validation import validate

if TYPE_CHECKING:
    from lightning import Callback, Trainer

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
    _set_up_logging(quiet=cfg.quiet)
    OmegaConf.resolve(cfg)
    tasks = _load_tasks(cfg.datamodule, cfg)
    _say(cfg, f"{len(tasks)} training tasks")
    run = Run(cfg, tasks, overrides=list(overrides))
    try:
        run.fit()
    finally:
        run.close()


class Run:
    """Everything one training run holds, built in the order in which parts need each other."""

    def __init__(self, cfg: DictConfig, tasks: list[Task], *, overrides: list[str]) -> None:
        import torch
        from hydra.utils import instantiate
        from lightning import seed_everything

        from arise.agents.orchestrator import Orchestrator
        from arise.agents.rendering import ChatRenderer
        from arise.aio import EventLoopThread

        self.cfg = cfg
        self.environments = instantiate(cfg.environment)
        self.environments.check()
        self.tasks = _require_supported(tasks, self.environments)
        loader = instantiate(cfg.model.loader)
        harness = instantiate(cfg.harness)
        renderer = ChatRenderer(loader.tokenizer(), observation_role=harness.observation_role)
        # The global generator initialises weights only; rollouts and sampler have their own.
        seed_everything(cfg.seed, workers=True, verbose=False)
        if cfg.rollout.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        self.folder: RunFolder = open_run_folder(cfg, overrides=overrides)
        self.loader = loader
        self.loop = EventLoopThread()
        self.engine = instantiate(
            cfg.engine,
            model=loader.empty_model,
            max_context_tokens=cfg.rollout.context_tokens,
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
        self.curriculum = build_curriculum(cfg, self.tasks)

    def fit(self) -> None:
        """Train to the configured step and say where everything is."""
        from lightning.pytorch.trainer.states import TrainerStatus

        from arise.datamodules.tasks import TaskDataModule

        trainer = self._trainer()
        datamodule = TaskDataModule(
            curriculum=self.curriculum, max_steps=self.cfg.trainer.max_steps
        )
        _say(self.cfg, f"run folder {self.folder.path}")
        checkpoint = self.folder.checkpoint
        try:
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
        """Stop engine, sandboxes and event loop; safe after any failure."""
        self.loop.run(self.engine.stop())
        self.loop.close()
        self.environments.close()

    def _module(self) -> Any:
        from hydra.utils import instantiate

        from arise.modules.policy import PolicyModule

        algorithm, model = self.cfg.algorithm, self.cfg.model
        return PolicyModule(
            loader=self.loader,
            optimizer=instantiate(algorithm.optimizer),
            warmup_steps=algorithm.warmup_steps,
            max_grad_norm=algorithm.max_grad_norm,
            dual_clip=algorithm.dual_clip,
            ratio_low=algorithm.ratio_low,
            ratio_high=algorithm.ratio_high,
            max_initial_ratio_error=algorithm.max_initial_ratio_error,
            temperature=self.cfg.rollout.temperature,
            compute_dtype=model.compute_dtype,
            layout=model.layout,
            chunk_tokens=model.logprob_chunk_tokens,
        )

    def _trainer(self) -> Trainer:
        from hydra.utils import instantiate

        try:
            return instantiate(
                self.cfg.trainer, callbacks=self._callbacks(), logger=self._loggers() or False
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

        cfg, algorithm = self.cfg, self.cfg.algorithm
        callbacks: list[Callback] = [
            RolloutCallback(
                loop=self.loop,
                engine=self.engine,
                orchestrator=self.orchestrator,
                curriculum=self.curriculum,
                judge=None,
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
            ),
            CoEvolutionCallback(curriculum=self.curriculum),
        ]
        callbacks += self._evaluation()
        callbacks += [
            RecorderCallback(folder=self.folder, curriculum=self.curriculum),
            MonitoringCallback(curriculum=self.curriculum),
            ProgressCallback(quiet=cfg.quiet),
            ExportCallback(folder=self.folder.final_model, loader=self.loader),
            StepCheckpoint(folder=self.folder.checkpoints, **cfg.callbacks.checkpoint),
        ]
        return callbacks

    def _evaluation(self) -> list[Callback]:
        from arise.callbacks.evaluation import EvaluationCallback

        evaluation = self.cfg.evaluation
        if evaluation.eval_interval is None:
            return []
        tasks = _require_supported(_load_tasks(evaluation, self.cfg), self.environments)
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


def build_curriculum(cfg: DictConfig, tasks: Sequence[Task]) -> Any:
    """Sampler and pool as configured, owned by one curriculum."""
    raise NotImplementedError


def _load_tasks(group: DictConfig, cfg: DictConfig) -> list[Task]:
    """The corpus of a group: the user's folders, or what its generator writes."""
    from hydra.utils import instantiate

    from arise.tasks.corpus import load_corpus

    corpus = group.corpus
    if corpus is None:
        corpus = str(instantiate(group.generator))
    return load_corpus(corpus if isinstance(corpus, str) else list(corpus))


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
    import warnings

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("arise").setLevel(logging.WARNING if quiet else logging.INFO)
    for noisy in ("lightning.pytorch", "lightning.fabric", "httpx", "transformers"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def _say(cfg: DictConfig, text: str) -> None:
    if not cfg.quiet:
        print(text, flush=True)
