"""What a run that goes on from an earlier checkpoint forgets, and in which order."""

from pathlib import Path

import pytest
from lightning import LightningModule, Trainer
from omegaconf import OmegaConf

from arise.callbacks.continuation import ContinuationCallback
from arise.runs.catalogue import recorded_steps
from arise.runs.folder import RunFolder, checkpoint_name, complete_checkpoints
from arise.runs.records import trajectory_file, write_records


def make_trainer(step: int) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step  # noqa: E501
    assert trainer.global_step == step
    return trainer


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of 20 steps with a checkpoint every 5, to be gone on with from step 10."""
    for step in (5, 10, 15, 20):
        (tmp_path / "checkpoints" / checkpoint_name(step) / "part").mkdir(parents=True)
    for step in range(1, 21):
        write_records(trajectory_file(tmp_path / "trajectories", step), iter([{"step": step}]))
    (tmp_path / ".hydra" / "from_step_000015").mkdir(parents=True)
    return RunFolder(path=tmp_path, checkpoint=tmp_path / "checkpoints" / checkpoint_name(10))


def goes_on(run: RunFolder) -> None:
    cfg = OmegaConf.create({"seed": 7, "judge": {"api_key": "sk-test-123"}})
    callback = ContinuationCallback(folder=run, cfg=cfg, overrides=["seed=7"])
    callback.on_train_start(make_trainer(10), LightningModule())


def test_what_came_after_the_checkpoint_is_removed_and_the_configuration_kept(
    run: RunFolder,
) -> None:
    goes_on(run)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "step_000005",
        "step_000010",
    ]
    assert recorded_steps(run.path) == list(range(1, 11))
    assert [path.name for path in (run.path / ".hydra").iterdir()] == ["from_step_000010"]
    kept = run.path / ".hydra" / "from_step_000010"
    assert OmegaConf.load(kept / "config.yaml").seed == 7
    assert list(OmegaConf.load(kept / "overrides.yaml")) == ["seed=7"]
    assert "sk-test-123" not in (kept / "config.yaml").read_text()


def test_a_death_in_between_leaves_no_checkpoint_without_its_records(run: RunFolder) -> None:
    """The death is a full disk here: what may be written is a file, and the folder is taken."""
    (run.path / ".hydra" / ".writing_from_step_000010").write_text("in the way")
    with pytest.raises(FileExistsError):
        goes_on(run)
    assert [path.name for path in complete_checkpoints(run.path)] == ["step_000005", "step_000010"]
    assert recorded_steps(run.path) == list(range(1, 21)), "not yet"
    (run.path / ".hydra" / ".writing_from_step_000010").unlink()
    goes_on(run)
    assert recorded_steps(run.path) == list(range(1, 11))
