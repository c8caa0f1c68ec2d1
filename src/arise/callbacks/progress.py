"""Tells the display what the run does: two callbacks, around all others."""

from __future__ import annotations

import time
from typing import Any

from lightning import Callback, LightningModule, Trainer

from arise.callbacks.display import Display, RunState
from arise.types import Iteration

ROLLOUTS = "the policy works on its tasks in sandboxes, and the judge reads"
TRAINING = "learning from them"
EVOLUTION = "new weights to the engine; then pool, evaluation, checkpoint"


class PhaseCallback(Callback):
    """Comes first: whatever the other callbacks do in a hook belongs to the phase that it names.

    Args:
        display: Shows the run; `None` shows nothing.
        state: The run's, shared with `ProgressCallback`.
    """

    def __init__(self, display: Display | None, state: RunState) -> None:
        self._display = display
        self._state = state

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to show the run, before the engine starts."""
        now = time.perf_counter()
        self._state.step = trainer.global_step
        self._state.started = self._state.last_ended = now
        _enter(self._state, "starting the engine")
        if self._display is not None and trainer.is_global_zero:
            self._display.open(self._state)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Iteration, batch_idx: int
    ) -> None:
        """Episodes come next."""
        _enter(self._state, ROLLOUTS)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """The optimizer step is done."""
        _enter(self._state, EVOLUTION)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the terminal as it was before anything else is written to it."""
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The same at the end."""
        self._close()

    def _close(self) -> None:
        if self._display is not None:
            self._display.close()


class ProgressCallback(Callback):
    """Comes after `MonitoringCallback`, which completes an iteration's metrics, and shows it.

    Args:
        display: Shows the run; `None` shows nothing.
        state: The run's, shared with `PhaseCallback`.
    """

    def __init__(self, display: Display | None, state: RunState) -> None:
        self._display = display
        self._state = state
        self._first_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember where this process begins, for the estimate."""
        self._first_step = trainer.global_step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Iteration, batch_idx: int
    ) -> None:
        """Episodes are over."""
        _enter(self._state, TRAINING)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Put the iteration into the state and show it."""
        if self._display is None or not trainer.is_global_zero:
            return
        state, now = self._state, time.perf_counter()
        state.step = trainer.global_step
        state.last_ended = now
        done = max(1, trainer.global_step - self._first_step)
        state.left_s = (now - state.started) / done * (trainer.max_steps - trainer.global_step)
        state.history.append(dict(batch.metrics))
        state.num_lost = sum(len(group.failures) for group in batch.groups)
        self._display.iteration(state, batch)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing changes any more; the run's table comes below."""
        _enter(self._state, "finished")
        if self._display is not None and trainer.is_global_zero:
            self._display.close()


def _enter(state: RunState, phase: str) -> None:
    state.phase, state.phase_started = phase, time.perf_counter()
