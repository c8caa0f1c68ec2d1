import signal
from pathlib import Path
from typing import Any

import pytest
from lightning import LightningModule, Trainer

from arise.callbacks.checkpoint import RestoreGuard, StepCheckpoint
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


@pytest.mark.parametrize("key", ["every_steps", "keep_last", "keep_every"])
def test_numbers_out_of_range_are_refused(tmp_path: Path, key: str) -> None:
    numbers = {"every_steps": 1, "keep_last": 0, "keep_every": 0, key: -1}
    with pytest.raises(ConfigError, match=rf"callbacks\.checkpoint\.{key} = -1"):
        StepCheckpoint(folder=tmp_path, **numbers)


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "kept"),
    [
        (0, 0, [2, 4, 6, 8, 10]),
        (2, 0, [8, 10]),
        (1, 4, [4, 8, 10]),
        (2, 10, [8, 10]),
        (9, 4, [2, 4, 6, 8, 10]),
    ],
)
def test_old_checkpoints_are_pruned_but_multiples_stay(
    tmp_path: Path, keep_last: int, keep_every: int, kept: list[int]
) -> None:
    folder = add_checkpoints(tmp_path, 2, 4, 6, 8, 10)
    callback = StepCheckpoint(
        folder=folder, every_steps=2, keep_last=keep_last, keep_every=keep_every
    )
    callback._prune()
    assert names(folder) == [checkpoint_name(step) for step in kept]


def test_what_a_death_left_half_done_is_cleaned_up(tmp_path: Path) -> None:
    folder = add_checkpoints(tmp_path, 5)
    for name in (".saving_step_000010", ".removing_step_000001"):
        (folder / name / "part").mkdir(parents=True)
    callback = StepCheckpoint(folder=folder, every_steps=5, keep_last=0, keep_every=0)
    callback.on_train_start(make_trainer(5), LightningModule())
    assert names(folder) == ["step_000005"]


def test_an_interrupt_waits_for_the_end_of_the_iteration(tmp_path: Path) -> None:
    callback: Any = StepCheckpoint(folder=tmp_path, every_steps=5, keep_last=0, keep_every=0)
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
    callback: Any = StepCheckpoint(folder=tmp_path, every_steps=5, keep_last=0, keep_every=0)
    trainer, module = make_trainer(1), LightningModule()
    before = signal.getsignal(signal.SIGINT)
    callback.on_train_batch_start(trainer, module, None, 0)
    callback.on_exception(trainer, module, ValueError("a fault"))
    assert signal.getsignal(signal.SIGINT) is before
    assert names(tmp_path) == []


def test_what_fails_while_restoring_is_one_clear_error(tmp_path: Path) -> None:
    guard = RestoreGuard(tmp_path / "step_000005")
    guard.on_fit_start(make_trainer(0), LightningModule())
    message = r"step_000005' cannot be put back .*ValueError: no good"
    with pytest.raises(ConfigError, match=message), guard.explained():
        raise ValueError("no\n good")
    with pytest.raises(ConfigError, match=r"^the sampler says why$"), guard.explained():
        raise ConfigError("the sampler says why")
    guard.on_train_start(make_trainer(5), LightningModule())
    with pytest.raises(ValueError, match="a fault"), guard.explained():
        raise ValueError("a fault")


def test_a_fresh_run_restores_nothing() -> None:
    guard = RestoreGuard(None)
    guard.on_fit_start(make_trainer(0), LightningModule())
    with pytest.raises(ValueError, match="a fault"), guard.explained():
        raise ValueError("a fault")
