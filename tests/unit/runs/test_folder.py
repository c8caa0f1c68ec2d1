from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.folder import (
    RunFolder,
    checkpoint_name,
    checkpoint_step,
    complete_checkpoints,
    find_checkpoint,
    is_first_process,
    make_run_folder,
    share_run_folder,
)


def make_config(
    output_dir: Path, ckpt_path: str | None = None, *, name: str = "exp", **extra: object
) -> DictConfig:
    return OmegaConf.create(
        {
            "experiment_name": name,
            "ckpt_path": ckpt_path,
            "paths": {"output_dir": str(output_dir)},
            **extra,
        }
    )


def make_folder(output_dir: Path, **extra: object) -> RunFolder:
    overrides = ["seed=1", "judge.api_key=sk-test-123"]
    return make_run_folder(make_config(output_dir, **extra), overrides=overrides)


def add_checkpoint(run: Path, name: str) -> Path:
    path = run / "checkpoints" / name
    path.mkdir(parents=True)
    return path


def test_a_fresh_run_gets_a_folder_of_its_own_with_its_configuration(tmp_path: Path) -> None:
    first, second = make_folder(tmp_path, seed=3), make_folder(tmp_path)
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
    folder = make_folder(tmp_path, judge=judge, password="sk-test-123").path
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {file.name for file in files} == {"config.yaml", "overrides.yaml", "lock"}
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
    found = find_checkpoint(make_config(tmp_path, "last"))
    assert found == (newer / "checkpoints" / "step_000010").resolve()
    assert list(newest.iterdir()) == []


def test_a_run_that_its_launcher_starts_again_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun does after a process died; the command is the one that began the run."""
    run = tmp_path / "exp" / "2025-01-01_10-00-00"
    run.mkdir(parents=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert find_checkpoint(make_config(tmp_path)) is None
    checkpoint = add_checkpoint(run, "step_000004")
    assert find_checkpoint(make_config(tmp_path)) == checkpoint.resolve()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert find_checkpoint(make_config(tmp_path)) is None


def test_last_without_any_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ckpt_path=last") as caught:
        find_checkpoint(make_config(tmp_path, "last"))
    assert str(tmp_path / "exp") in str(caught.value)
    assert not (tmp_path / "exp").exists()


def test_a_checkpoint_by_path_goes_on_in_its_run(tmp_path: Path) -> None:
    path = add_checkpoint(tmp_path / "elsewhere" / "run", "step_000010")
    assert find_checkpoint(make_config(tmp_path, str(path))) == path.resolve()


@pytest.mark.parametrize(
    "name", ["epoch=3-step=40.ckpt", "step_", "step_12", "000010", "step_²²²²²²"]
)
def test_a_folder_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    with pytest.raises(ConfigError, match="step_000010") as caught:
        find_checkpoint(make_config(tmp_path, str(path)))
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


def test_other_processes_of_a_run_use_the_first_ones_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ARISE_RUN_FOLDER", "")
    first = make_folder(tmp_path)
    share_run_folder(first)
    add_checkpoint(first.path, "step_000005")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not is_first_process()
    other = make_folder(tmp_path)
    assert (other.path, other.lock) == (first.path, None)
    newer = add_checkpoint(tmp_path / "exp" / "9999-01-01_00-00-00", "step_000009")
    assert newer.is_dir()
    found = find_checkpoint(make_config(tmp_path, "last"))
    assert found == first.path / "checkpoints" / "step_000005"
    monkeypatch.setenv("RANK", "0")
    assert is_first_process(), "a launcher's RANK says it all"


def test_a_passed_over_run_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_checkpoint(tmp_path / "exp" / "2025-01-01_10-00-00", "step_000050")
    (tmp_path / "exp" / "2025-01-02_10-00-00").mkdir()
    find_checkpoint(make_config(tmp_path, "last"))
    assert "2025-01-02_10-00-00 has no checkpoint and is passed over" in caplog.text
