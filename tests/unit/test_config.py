"""Every shipped configuration composes, and mistakes in one are refused."""

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from arise.config import register_schemas
from arise.errors import ConfigError
from arise.validation import validate

CONFIGS = Path(__file__).parents[2] / "configs"
TASKS = Path(__file__).parents[1] / "data" / "tasks"
# What a file leaves to the user.
NEEDED = {
    ("model", "pretrained"): ["model.loader.path=some/model"],
    ("judge", "openai"): ["judge.model=some-model"],
    ("reflection", "openai"): ["reflection.model=some-model"],
    ("datamodule", "folder"): ["datamodule.corpus=some/tasks"],
    ("model", "endpoint"): ["model.model=some-model", "model.base_url=http://some/v1"],
    ("harness", "external"): ["harness.command=some-agent"],
    ("benchmark", "skillsbench"): ["benchmark.path=some/tasks"],
    ("benchmark", "terminal_bench"): ["benchmark.path=some/tasks"],
}


def names_in(group: str) -> list[str]:
    folder = CONFIGS / group
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml"))


def groups() -> list[str]:
    return sorted(folder.name for folder in CONFIGS.iterdir() if folder.is_dir())


def own_tasks() -> list[str]:
    """Overrides for a composition that needs nothing generated."""
    return ["datamodule=folder", f"datamodule.corpus={TASKS}", "evaluation=none"]


@functools.cache
def composed(*overrides: str) -> DictConfig:
    register_schemas()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        return compose(config_name="train", overrides=[*own_tasks(), *overrides])


def leaves(node: Any, prefix: str = "") -> set[str]:
    if not isinstance(node, dict):
        return {prefix}
    return {leaf for key, value in node.items() for leaf in leaves(value, f"{prefix}.{key}")}


def read(group: str, name: str) -> tuple[set[str], set[str]]:
    """Keys that a file sets, and groups whose choice it overrides."""
    content = yaml.safe_load((CONFIGS / group / f"{name}.yaml").read_text(encoding="utf-8")) or {}
    defaults = content.pop("defaults", [])
    chosen = {key.split()[-1] for entry in defaults if isinstance(entry, dict) for key in entry}
    return leaves(content), {key for key in chosen if key.startswith("/")}


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group in groups() for name in names_in(group) if group != "experiment"],
)
def test_every_file_composes(group: str, name: str) -> None:
    kept = [o for o in own_tasks() if not o.startswith((f"{group}=", f"{group}."))]
    needed = NEEDED.get((group, name), [])
    root = "train"
    if group == "benchmark":
        root, kept = "evaluate", []
    register_schemas()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        cfg = compose(config_name=root, overrides=[*kept, f"{group}={name}", *needed])
    assert OmegaConf.missing_keys(cfg) == set()
    OmegaConf.to_container(cfg, resolve=True)


@pytest.mark.parametrize("scale", names_in("scale"))
@pytest.mark.parametrize("experiment", names_in("experiment"))
def test_every_experiment_composes_at_every_scale(experiment: str, scale: str) -> None:
    cfg = composed(f"experiment={experiment}", f"scale={scale}")
    assert OmegaConf.missing_keys(cfg) == set()
    alone = composed(f"scale={scale}")
    for key in read("scale", scale)[0]:
        assert OmegaConf.select(cfg, key[1:]) == OmegaConf.select(alone, key[1:]), key
    assert cfg.experiment_name != "train"


@pytest.mark.parametrize("experiment", names_in("experiment"))
def test_an_experiment_sets_nothing_that_a_scale_sets(experiment: str) -> None:
    keys, choices = read("experiment", experiment)
    for scale in names_in("scale"):
        scale_keys, scale_choices = read("scale", scale)
        assert keys & scale_keys == set()
        assert choices & scale_choices == set()


def test_outcome_only_is_a_valid_run_of_the_verifier_alone() -> None:
    cfg = composed("experiment=ablation/outcome_only", "model=random_tiny")
    validate(cfg)
    assert (cfg.rubrics.mode, cfg.curriculum.sampler) == ("none", "uniform")


def test_the_papers_constants() -> None:
    cfg = composed("scale=paper_32gpu")
    rollout, algorithm, rubrics = cfg.rollout, cfg.algorithm, cfg.rubrics
    assert (cfg.trainer.max_steps, rollout.tasks_per_step, rollout.rollouts_per_task) == (
        150,
        32,
        8,
    )
    assert (rollout.context_tokens, rollout.temperature, rollout.top_p) == (131072, 1.0, 1.0)
    assert (algorithm.optimizer.lr, algorithm.warmup_steps) == (2e-6, 40)
    assert (algorithm.max_grad_norm, algorithm.optimizer.weight_decay) == (1.0, 0.0)
    assert (algorithm.rubric_weight, algorithm.dual_clip, algorithm.epsilon) == (0.3, 3.0, 1e-9)
    assert (algorithm.ratio_low, algorithm.ratio_high) == (0.5, 5.0)
    assert (algorithm.length_alpha, algorithm.length_threshold_tokens) == (0.5, 16384)
    assert (rubrics.eta_low, rubrics.eta_high, rubrics.update_interval) == (0.3, 0.9, 10)
    assert (rubrics.max_pairs, rubrics.max_new_pairs, rubrics.max_records) == (64, 8, 256)
    curriculum = cfg.curriculum
    assert (curriculum.min_discovery_probability, curriculum.pair_quota) == (0.1, 0.25)
    assert (curriculum.gamma_obs, curriculum.gamma_unobs) == (0.2, 0.999)


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.lambdda=0.3",
        "nothing=1",
        "model.loader.pathh=x",
        "trainer.max_stepz=1",
        "callbacks.checkpoint.every_step=1",
        "rubrics.skills.injekt=true",
    ],
)
def test_C03_a_mistyped_key_is_refused(override: str) -> None:
    with pytest.raises(ConfigCompositionException) as caught:
        composed(override)
    assert override.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("algorithm.lambdda", "rubric_weight"),
        ("rollout.top_pp", "did you mean rollout.top_p?"),
        ("callbacks.checkpoint.every_step", "did you mean callbacks.checkpoint.every_steps?"),
        ("rubrics.skills.injekt", "did you mean rubrics.skills.inject?"),
        ("quite", "did you mean quiet?"),
    ],
)
def test_C03_a_mistyped_key_that_is_added_is_refused(key: str, hint: str) -> None:
    cfg = composed(f"+{key}=0.3", "experiment=ablation/outcome_only", "model=random_tiny")
    with pytest.raises(ConfigError) as caught:
        validate(cfg)
    assert f"{key} is not a configuration key" in str(caught.value)
    assert hint in str(caught.value)


def test_C03_a_mistyped_key_in_a_users_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nalgorithm:\n  lambdda: 0.3\n")
    with pytest.raises(HydraException) as caught:
        composed(f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine")
    assert "lambdda" in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.dual_clip=big",
        "rollout.tasks_per_step=2.5",
        "rubrics.skills.inject=maybe",
        "seed=null",
        "algorithm.optimizer=adam",
        "callbacks.checkpoint.keep_last=many",
    ],
)
def test_a_value_of_the_wrong_type_is_refused(override: str) -> None:
    with pytest.raises(HydraException) as caught:
        composed(override)
    assert override.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize("value", ["runs/epoch=3.ckpt", "a#b", "李明"])
def test_C01_values_that_need_quotes_work_with_them(value: str) -> None:
    with pytest.raises(OverrideParseException):
        composed(f"ckpt_path={value}")
    assert composed(f'ckpt_path="{value}"').ckpt_path == value
