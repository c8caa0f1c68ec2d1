import signal
from pathlib import Path
from typing import Any

import pytest
from lightning import LightningModule, Trainer

from arise.callbacks.checkpoint import StepCheckpoint
from arise.errors import ConfigError
from arise.runs.folder import checkpoint_name


def make_trainer(step: int) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step  # noqa: E501
    return trainer


def add_checkpoints(run: Path, *steps: int) -> Path:
    folder = run / "checkpoints"
    for step in steps:
        (folder / checkpoint_name(step)).mkdir(parents=True)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("key", "numbers"), [("every_steps", (0, 1)), ("keep_last", (1, -1))])
def test_numbers_out_of_range_are_refused(
    tmp_path: Path, key: str, numbers: tuple[int, int]
) -> None:
    with pytest.raises(ConfigError, match=rf"callbacks\.checkpoint\.{key}"):
        StepCheckpoint(folder=tmp_path, every_steps=numbers[0], keep_last=numbers[1])


def test_checkpoints_of_an_abandoned_continuation_are_removed(tmp_path: Path) -> None:
    folder = add_checkpoints(tmp_path, 5, 10, 15, 20)
    trainer = make_trainer(10)
    assert trainer.global_step == 10
    callback = StepCheckpoint(folder=folder, every_steps=5, keep_last=0)
    callback.on_train_start(trainer, LightningModule())
    assert names(folder) == ["step_000005", "step_000010"]


def test_an_interrupt_waits_for_the_end_of_the_iteration(tmp_path: Path) -> None:
    callback: Any = StepCheckpoint(folder=tmp_path, every_steps=5, keep_last=0)
    trainer, module = make_trainer(1), LightningModule()
    before = signal.getsignal(signal.SIGINT)
    callback.on_train_batch_start(trainer, module, None, 0)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        callback.on_train_batch_end(trainer, module, None, None, 0)
    assert signal.getsignal(signal.SIGINT) is before
    callback.on_train_batch_start(trainer, module, None, 1)
    callback.on_train_batch_end(trainer, module, None, None, 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fault_gives_interrupts_back_and_saves_nothing(tmp_path: Path) -> None:
    callback: Any = StepCheckpoint(folder=tmp_path, every_steps=5, keep_last=0)
    trainer, module = make_trainer(1), LightningModule()
    before = signal.getsignal(signal.SIGINT)
    callback.on_train_batch_start(trainer, module, None, 0)
    callback.on_exception(trainer, module, ValueError("a fault"))
    assert signal.getsignal(signal.SIGINT) is before
    assert names(tmp_path) == []
