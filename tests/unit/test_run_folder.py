from pathlib import Path

import pytest
from omegaconf import OmegaConf

from arise.errors import ConfigError
from arise.runs.folder import (
    RunFolder,
    checkpoint_name,
    checkpoint_step,
    complete_checkpoints,
    open_run_folder,
)


def open_folder(
    output_dir: Path, ckpt_path: str | None = None, *, name: str = "exp", **extra: object
) -> RunFolder:
    cfg = OmegaConf.create(
        {
            "experiment_name": name,
            "ckpt_path": ckpt_path,
            "paths": {"output_dir": str(output_dir)},
            **extra,
        }
    )
    return open_run_folder(cfg, overrides=["seed=1", "judge.api_key=sk-test-123"])


def add_checkpoint(run: Path, name: str) -> Path:
    path = run / "checkpoints" / name
    path.mkdir(parents=True)
    return path


def test_a_fresh_run_gets_a_folder_of_its_own_with_its_configuration(tmp_path: Path) -> None:
    first, second = open_folder(tmp_path, seed=3), open_folder(tmp_path)
    assert first.path != second.path
    assert first.path.parent == second.path.parent == tmp_path.resolve() / "exp"
    assert first.checkpoint is None
    config = OmegaConf.load(first.path / ".hydra" / "config.yaml")
    assert (config.experiment_name, config.seed) == ("exp", 3)
    assert OmegaConf.load(first.path / ".hydra" / "overrides.yaml")[0] == "seed=1"
    assert first.pool_log.parent == first.trajectories.parent == first.checkpoints.parent


def test_C04_secrets_are_not_written(tmp_path: Path) -> None:
    judge = {
        "api_key": "sk-test-123",
        "api_key_env": "OPENAI_API_KEY",
        "headers": [{"token": "sk-test-123"}],
        "max_tokens": 5,
    }
    folder = open_folder(tmp_path, judge=judge, password="sk-test-123").path
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 2
    for file in files:
        assert "sk-test-123" not in file.read_text()
    kept = OmegaConf.load(folder / ".hydra" / "config.yaml").judge
    assert (kept.api_key, kept.api_key_env, kept.max_tokens) == ("<hidden>", "OPENAI_API_KEY", 5)


def test_last_goes_on_in_the_newest_run_that_has_a_checkpoint(tmp_path: Path) -> None:
    old, newer, newest = (
        tmp_path / "exp" / name
        for name in ("2025-01-01_10-00-00", "2025-01-01_10-00-00-001", "2025-01-02_09-00-00")
    )
    add_checkpoint(old, "step_000050")
    add_checkpoint(newer, "step_000005")
    add_checkpoint(newer, "step_000010")
    newest.mkdir()
    add_checkpoint(tmp_path / "other" / "2026-01-01_00-00-00", "step_000099")
    found = open_folder(tmp_path, "last")
    assert found.path == newer.resolve()
    assert found.checkpoint == (newer / "checkpoints" / "step_000010").resolve()
    assert not (newest / ".hydra").exists()


def test_last_without_any_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ckpt_path=last") as caught:
        open_folder(tmp_path, "last")
    assert str(tmp_path / "exp") in str(caught.value)
    assert not (tmp_path / "exp").exists()


def test_a_checkpoint_by_path_goes_on_in_its_run(tmp_path: Path) -> None:
    path = add_checkpoint(tmp_path / "elsewhere" / "run", "step_000010")
    found = open_folder(tmp_path, str(path))
    assert (found.path, found.checkpoint) == (path.parents[1].resolve(), path.resolve())


@pytest.mark.parametrize(
    "name", ["epoch=3-step=40.ckpt", "step_", "step_12", "000010", "step_²²²²²²"]
)
def test_a_folder_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    with pytest.raises(ConfigError, match="step_000010") as caught:
        open_folder(tmp_path, str(path))
    assert name in str(caught.value)


def test_only_whole_checkpoints_count_oldest_first(tmp_path: Path) -> None:
    names = ["step_000010", "step_1000000", "step_000002"]
    for name in (*names, ".saving_step_000011", "step_000010_backup", "other"):
        add_checkpoint(tmp_path, name)
    (tmp_path / "checkpoints" / "step_000012").write_text("a file")
    found = [path.name for path in complete_checkpoints(tmp_path)]
    assert found == ["step_000002", "step_000010", "step_1000000"]
    assert complete_checkpoints(tmp_path / "absent") == []


@pytest.mark.parametrize("step", [0, 7, 999_999, 1_000_000])
def test_C01_names_round_trip_and_need_no_quotes(step: int) -> None:
    name = checkpoint_name(step)
    assert checkpoint_step(Path("x") / name) == step
    assert name.replace("_", "").isalnum()
