"""What may change when a run goes on, on the real configurations."""

import copy
import functools
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.folder import RunFolder, checkpoint_name, make_run_folder
from arise.runs.lock import is_locked
from arise.runs.manifest import write_manifest
from arise.runs.resume import (
    FREE_KEYS,
    MEANING_KEYS,
    changed_keys,
    config_in_force,
    find_run,
    finished_message,
    is_finished,
    record_config,
)
from runs import TINY, compose_config

GROUPS = ("judge", "logger", "evaluation")
SMALL = ("experiment=arise", *TINY[1:])


@functools.cache
def composed(*groups: str) -> DictConfig:
    return compose_config(*SMALL, *groups)


def config(tmp_path: Path, *overrides: str) -> DictConfig:
    """The composed configuration; composing costs a second, so it is done once per groups."""
    groups = [override for override in overrides if override.partition("=")[0] in GROUPS]
    cfg = copy.deepcopy(composed(*groups))
    for override in (f"paths.output_dir={tmp_path}", *overrides):
        key, _, value = override.removeprefix("+").partition("=")
        if override not in groups:
            OmegaConf.update(cfg, key, yaml.safe_load(value), force_add=True)
    OmegaConf.resolve(cfg)
    return cfg


def add_checkpoint(run: Path, step: int) -> Path:
    path = run / "checkpoints" / checkpoint_name(step)
    path.mkdir(parents=True)
    write_manifest(path, step=step, num_processes=1)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_run_folder(config(tmp_path), overrides=[])
    folder.release()
    add_checkpoint(folder.path, 2)
    return folder.path


@pytest.mark.parametrize(
    ("override", "key", "old", "new"),
    [
        ("algorithm.rubric_weight=0.5", "algorithm.rubric_weight", "0.3", "0.5"),
        ("rubrics.eta_low=0.2", "rubrics.eta_low", "0.3", "0.2"),
        ("rubrics.eta_high=0.95", "rubrics.eta_high", "0.9", "0.95"),
        ("rubrics.update_interval=3", "rubrics.update_interval", "5", "3"),
        ("rollout.rollouts_per_task=4", "rollout.rollouts_per_task", "2", "4"),
        ("rollout.tasks_per_step=3", "rollout.tasks_per_step", "2", "3"),
        ("rollout.temperature=0.8", "rollout.temperature", "1.0", "0.8"),
        ("curriculum.sampler=vade", "curriculum.sampler", "'capability'", "'vade'"),
        ("curriculum.gamma_obs=0.5", "curriculum.gamma_obs", "0.2", "0.5"),
        ("seed=2", "seed", "1", "2"),
        ("model.loader.hidden_size=64", "model.loader.hidden_size", "32", "64"),
        ("algorithm.optimizer.lr=1.0", "algorithm.optimizer.lr", "0.001", "1.0"),
        ("+algorithm.optimizer.amsgrad=true", "algorithm.optimizer.amsgrad", "'(not set)'", "True"),
        ("harness.max_turns=9", "harness.max_turns", "2", "9"),
        ("trainer.precision=bf16-true", "trainer.precision", "'32-true'", "'bf16-true'"),
        ("engine.dtype=bfloat16", "engine.dtype", "'float32'", "'bfloat16'"),
    ],
)
def test_a_changed_meaning_is_refused_with_key_old_and_new(
    run: Path, tmp_path: Path, override: str, key: str, old: str, new: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        find_run(config(tmp_path, "ckpt_path=last", override))
    message = str(caught.value)
    assert f"\n  {key}: {old} -> {new}\n" in message
    assert "resume.force=true" in message
    assert not is_locked(run), "a refusal lets the run go"


def test_force_goes_on_with_a_warning(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = config(tmp_path, "ckpt_path=last", "resume.force=true", "rubrics.eta_low=0.2")
    folder = find_run(cfg)
    assert folder is not None
    assert "rubrics.eta_low: 0.3 -> 0.2" in caplog.text
    assert is_locked(run)
    folder.release()


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.max_steps=500"],
        ["trainer.devices=2", "trainer.strategy.data_parallel_size=2"],
        ["trainer.devices=4", "model.tensor_parallel=2", "model.sequence_parallel=2"],
        ["model.activation_checkpointing=true", "model.cpu_offload=both"],
        ["callbacks.checkpoint.every_steps=1", "callbacks.checkpoint.keep_every=10"],
        ["quiet=true", "logger=csv"],
        ["judge=openai", "judge.model=m", "judge.base_url=http://x/v1", "judge.api_key_env=null"],
        ["rollout.max_in_flight=1", "judge.max_concurrency=1"],
        ["evaluation=shellworld", "evaluation.eval_interval=7"],
        ["datamodule.corpus=tests"],
        ["algorithm.micro_batch_tokens=1", "model.layout=rows", "engine.max_sessions=2"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_what_only_says_how_may_change(run: Path, tmp_path: Path, overrides: list[str]) -> None:
    base = ["judge=openai", "judge.model=m", "judge.api_key_env=null"]
    if overrides[0] == "judge=openai":
        record_config(
            RunFolder(path=run, checkpoint=run / "checkpoints" / "step_000001"),
            config(tmp_path, *base),
            [],
        )
    folder = find_run(config(tmp_path, "ckpt_path=last", *overrides))
    assert folder is not None
    assert folder.checkpoint == run / "checkpoints" / "step_000002"
    folder.release()


def test_C04_no_secret_is_compared_or_shown(tmp_path: Path) -> None:
    folder = make_run_folder(config(tmp_path, "+judge.api_key=sk-test-1"), overrides=[])
    folder.release()
    add_checkpoint(folder.path, 2)
    found = find_run(config(tmp_path, "ckpt_path=last", "+judge.api_key=sk-test-2"))
    assert found is not None
    found.release()


def test_every_named_key_exists() -> None:
    cfg = compose_config("experiment=arise", "judge=openai", "reflection=openai", "judge.model=m")
    for key in (*FREE_KEYS, *MEANING_KEYS):
        node, _, name = key.rpartition(".")
        parent = OmegaConf.select(cfg, node) if node else cfg
        assert name in parent, key


def test_a_run_in_use_is_refused(run: Path, tmp_path: Path) -> None:
    first = find_run(config(tmp_path, "ckpt_path=last"))
    assert first is not None
    with pytest.raises(ConfigError, match="is in use by process"):
        find_run(config(tmp_path, "ckpt_path=last"))
    first.release()


def test_a_fresh_run_goes_on_with_nothing(tmp_path: Path) -> None:
    assert find_run(config(tmp_path)) is None


def test_finished_is_a_matter_of_max_steps(run: Path) -> None:
    folder = RunFolder(path=run, checkpoint=run / "checkpoints" / "step_000002")
    assert is_finished(folder, 2)
    assert not is_finished(folder, 3)
    message = finished_message(folder, 2)
    assert "step_000002 has reached trainer.max_steps = 2; set trainer.max_steps above 2" in message


def test_each_continuation_keeps_its_own_configuration(run: Path, tmp_path: Path) -> None:
    def goes_on(step: int, eta: float) -> None:
        folder = RunFolder(path=run, checkpoint=run / "checkpoints" / checkpoint_name(step))
        record_config(
            folder, config(tmp_path, f"rubrics.eta_low={eta}"), [f"rubrics.eta_low={eta}"]
        )

    def in_force(step: int) -> float:
        found = config_in_force(run, step)
        assert found is not None
        return found.rubrics.eta_low

    goes_on(2, 0.2)
    goes_on(4, 0.1)
    assert [in_force(step) for step in (1, 2, 3, 4, 5, 99)] == [0.3, 0.3, 0.2, 0.2, 0.1, 0.1]
    goes_on(3, 0.25)
    assert [in_force(step) for step in (2, 3, 4, 99)] == [0.3, 0.2, 0.25, 0.25]
    assert OmegaConf.load(run / ".hydra" / "config.yaml").rubrics.eta_low == 0.3
    saved = config_in_force(run, 3)
    assert saved is not None
    assert list(changed_keys(saved, config(tmp_path, "rubrics.eta_low=0.2"))) == []
