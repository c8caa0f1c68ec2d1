"""Plays a run's checkpoints again: the policy as it was, without a trainer."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig

from arise.errors import ConfigError

T = TypeVar("T")


class Player:
    """Engine, sandboxes, agent loop and judge of a run, for looking at its policies.

    A context manager; give it checkpoints with `use`.

    Args:
        cfg: The run's configuration, resolved.

    Attributes:
        orchestrator: Runs episodes with the policy in use.
        judge: The run's judge; `None` without rubrics.
        tasks: The run's training tasks by id.
        sampling: Of the run's training rollouts.
    """

    def __init__(self, cfg: DictConfig) -> None:
        from transformers.utils import logging as transformers_logging

        from arise.agents.orchestrator import Orchestrator
        from arise.agents.rendering import ChatRenderer
        from arise.aio import EventLoopThread
        from arise.assembly import build, build_rubrics, load_tasks, require_supported
        from arise.inference.base import SamplingParams

        transformers_logging.disable_progress_bar()
        self._cfg = cfg
        self._environments = build(cfg.environment)
        self._environments.check()
        tasks = require_supported(load_tasks(cfg.datamodule), self._environments)
        self.tasks = {task.id: task for task in tasks}
        self._loader = build(cfg.model.loader)
        harness = build(cfg.harness)
        self._loop = EventLoopThread()
        self._engine = build(
            cfg.engine,
            model=self._loader.empty_model,
            max_context_tokens=cfg.rollout.context_tokens,
        )
        self.orchestrator = Orchestrator(
            engine=self._engine,
            environments=self._environments,
            harness=harness,
            renderer=ChatRenderer(
                self._loader.tokenizer(), observation_role=harness.observation_role
            ),
            context_tokens=cfg.rollout.context_tokens,
            max_in_flight=cfg.rollout.max_in_flight,
            default_timeout_s=cfg.rollout.agent_timeout_s,
            deterministic=cfg.rollout.deterministic,
            seed=cfg.seed,
        )
        self.judge, _, self._models = build_rubrics(cfg)
        self.sampling = SamplingParams(temperature=cfg.rollout.temperature)

    def __enter__(self) -> Player:
        try:
            self.run(self._engine.start())
            for model in self._models:
                self.run(model.start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for part in (*self._models, *([self.judge] if self.judge else [])):
            self.run(part.stop())
        self.run(self._engine.stop())
        self._loop.close()
        self._environments.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something on the player's event loop."""
        return self._loop.run(work)

    def use(self, checkpoint: Path) -> None:
        """Let the engine play a checkpoint's policy from now on.

        Raises:
            ConfigError: The checkpoint does not fit the run's model.
        """
        from arise.inference.weights import fingerprints, verify
        from arise.runs.folder import checkpoint_step

        weights = read_weights(checkpoint, self._loader, self._cfg)
        step = checkpoint_step(checkpoint)
        report = self.run(self._engine.load_weights(weights, version=step))
        verify(fingerprints(weights, dtype=self._engine.dtype), report, version=step)


def read_weights(checkpoint: Path, loader: Any, cfg: DictConfig) -> dict[str, Any]:
    """The policy's full tensors out of a sharded checkpoint, adapters merged.

    Args:
        checkpoint: A checkpoint folder.
        loader: The run's model loader.
        cfg: The run's configuration.

    Raises:
        ConfigError: Tensors are missing.
    """
    from torch.distributed.checkpoint import load

    from arise.modules.lora import LoraOptions, add_adapters, merged_weights

    prefix = "state_dict.policy.model."
    model = loader.model()
    if cfg.model.lora.rank:
        add_adapters(model, LoraOptions(**cfg.model.lora, seed=cfg.seed))
    tensors = {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}
    try:
        with warnings.catch_warnings():
            # The library tells that one process loads alone, which is meant.
            warnings.simplefilter("ignore", UserWarning)
            load(tensors, checkpoint_id=str(checkpoint), no_dist=True)  # filled in place
    except Exception as error:  # the library raises whatever its reader meets
        raise ConfigError(f"{checkpoint} does not fit model={cfg.model.name}: {error}") from error
    plain = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return merged_weights(model, plain)
