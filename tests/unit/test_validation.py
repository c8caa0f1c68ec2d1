import copy
import functools
import re
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from arise.config import register_schemas
from arise.errors import ConfigError
from arise.validation import validate

CONFIGS = Path(__file__).parents[2] / "configs"
TASKS = Path(__file__).parents[1] / "data" / "tasks"


@functools.cache
def composed_from(*choices: str) -> DictConfig:
    register_schemas()
    base = [
        "datamodule=folder",
        f"datamodule.corpus={TASKS}",
        "evaluation=none",
        "model=random_tiny",
        "experiment=ablation/outcome_only",
    ]
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        return compose(config_name="train", overrides=[*base, *choices])


def composed(*overrides: str) -> DictConfig:
    """A composition; only choices of groups need a new one, values are set on a copy."""
    choices = [o for o in overrides if o.startswith(("model=", "judge="))]
    cfg = copy.deepcopy(composed_from(*choices))
    for override in overrides:
        if override not in choices:
            key, _, value = override.partition("=")
            OmegaConf.update(cfg, key.lstrip("+"), yaml.safe_load(value), force_add=key[0] == "+")
    return cfg


def complaint(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(composed(*overrides))
    return str(caught.value)


def test_values_of_candidates_are_checked_like_those_of_a_choice() -> None:
    cfg = copy.deepcopy(composed_from("engine=auto", "environment=auto"))
    validate(cfg)
    cfg.engine.candidates.vllm.dtype = "half"
    with pytest.raises(
        ConfigError, match=r"engine\.candidates\.vllm\.dtype = 'half' is not one of"
    ):
        validate(cfg)
    cfg.engine.candidates.vllm.dtype = "float16"
    cfg.environment.candidates.docker.memory_mb = 8
    with pytest.raises(
        ConfigError, match=r"environment\.candidates\.docker\.memory_mb = 8 is not in"
    ):
        validate(cfg)


def test_a_good_configuration_passes() -> None:
    validate(composed())


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("algorithm.rubric_weight", "1.5", "[0, 1]"),
        ("algorithm.rubric_weight", "-0.1", "[0, 1]"),
        ("algorithm.rubric_weight", "nan", "[0, 1]"),
        ("algorithm.epsilon", "0.0", "(0, 1)"),
        ("algorithm.length_alpha", "1.0", "[0, 1)"),
        ("algorithm.dual_clip", "1.0", "(1, inf)"),
        ("algorithm.dual_clip", "inf", "(1, inf)"),
        ("algorithm.ratio_low", "1.0", "[0, 1)"),
        ("algorithm.ratio_high", "1.0", "(1, inf]"),
        ("algorithm.warmup_steps", "-1", "[0, inf)"),
        ("algorithm.optimizer.lr", "-1.0", "[0, inf)"),
        ("rollout.tasks_per_step", "0", "[1, inf)"),
        ("rollout.rollouts_per_task", "1", "[2, inf)"),
        ("rollout.temperature", "0.0", "(0, inf)"),
        ("rollout.max_in_flight", "0", "[1, inf)"),
        ("curriculum.min_discovery_probability", "1.1", "[0, 1]"),
        ("curriculum.pair_quota", "0.0", "(0, 1]"),
        ("curriculum.gamma_unobs", "0.0", "(0, 1]"),
        ("rubrics.update_interval", "0", "[1, inf)"),
        ("rubrics.eta_high", "1.5", "[0, 1]"),
        ("judge.rubrics_per_request", "0", "[1, inf)"),
        ("harness.max_turns", "0", "[1, inf)"),
        ("model.lora.rank", "-1", "[0, inf)"),
        ("model.lora.alpha", "0", "[1, inf)"),
        ("harness.command_timeout_s", "0.0", "(0, inf)"),
        ("evaluation.top_p", "0.0", "(0, 1]"),
        ("evaluation.eval_interval", "0", "[1, inf)"),
        ("callbacks.checkpoint.every_steps", "0", "[1, inf)"),
        ("trainer.max_steps", "0", "[1, inf)"),
    ],
)
def test_a_number_out_of_range_names_key_value_and_range(
    key: str, value: str, allowed: str
) -> None:
    assert complaint(f"{key}={value}") == f"{key} = {value} is not in {allowed}"


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("algorithm.ratio_high=inf", float("inf")),
        ("algorithm.rubric_weight=0", 0.0),
        ("algorithm.rubric_weight=1", 1.0),
        ("curriculum.gamma_obs=0", 0.0),
        ("rollout.max_in_flight=null", None),
    ],
)
def test_bounds_that_are_allowed(override: str, value: float | None) -> None:
    cfg = composed(override)
    validate(cfg)
    assert OmegaConf.select(cfg, override.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("algorithm.std", "sample, population"),
        ("curriculum.sampler", "capability, uniform, vade"),
        ("rubrics.mode", "dynamic, frozen, none"),
        ("harness.action_format", "raw, fenced"),
        ("harness.observation_role", "user, tool"),
        ("model.layout", "auto, packed, rows"),
        ("model.compute_dtype", "float32, bfloat16"),
    ],
)
def test_a_choice_lists_the_choices(key: str, choices: str) -> None:
    message = complaint(f"{key}=other")
    assert message.startswith(f"{key} = 'other' is not one of ")
    assert set(choices.split(", ")) <= set(re.split(", | ", message))


@pytest.mark.parametrize(("key", "value"), [("top_p", "0.9"), ("top_k", "20")])
def test_T08_truncated_sampling_is_refused_in_training_only(key: str, value: str) -> None:
    message = complaint(f"rollout.{key}={value}")
    assert message.startswith(f"rollout.{key} = {value} ")
    assert f"evaluation.{key} is free" in message
    validate(composed(f"evaluation.{key}={value}"))


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["datamodule.corpus=???"], ["datamodule.corpus has no value"]),
        (
            ["rubrics.eta_low=0.9", "rubrics.eta_high=0.5"],
            ["rubrics.eta_low = 0.9", "below", "rubrics.eta_high = 0.5"],
        ),
        (["rubrics.eta_low=0.5", "rubrics.eta_high=0.5"], ["rubrics.eta_low = 0.5"]),
        (
            ["curriculum.sampler=capability"],
            ["curriculum.sampler = capability", "uniform or vade", "rubrics=dynamic"],
        ),
        (["rubrics.mode=frozen"], ["rubrics.pool_path"]),
        (["rubrics.pool_path=/absent/pool.jsonl"], ["rubrics.pool_path", "'/absent/pool.jsonl'"]),
        (["datamodule.corpus=/absent"], ["datamodule.corpus", "'/absent'", "does not exist"]),
        (["datamodule.corpus=[/absent]"], ["datamodule.corpus", "'/absent'"]),
        ([f"datamodule.corpus={CONFIGS}"], ["datamodule.corpus", "no task found", "task.toml"]),
        (["datamodule.corpus=3"], ["datamodule.corpus = 3", "folder or a list of folders"]),
        (["datamodule.corpus=null"], ["datamodule.corpus is empty"]),
        (["datamodule.corpus=[]"], ["datamodule.corpus is empty"]),
        (["evaluation.corpus=/absent"], ["evaluation.corpus", "'/absent'"]),
        (["evaluation.eval_interval=5"], ["evaluation.corpus is empty", "eval_interval = 5"]),
        (
            ["model=pretrained", "model.loader.path=./absent"],
            ["model.loader.path", "'./absent'", "does not exist"],
        ),
        (
            ["model=pretrained", "model.loader.path=a/b", "model.loader.chat_template=/absent"],
            ["model.loader.chat_template", "'/absent'"],
        ),
        (
            ["model=smollm2", "model.loader.package=package_that_is_absent"],
            ["model.loader.package", "'package_that_is_absent'", "pip install"],
        ),
        (["ckpt_path=/absent"], ["ckpt_path", "'/absent'", "last"]),
    ],
)
def test_rules_across_groups(overrides: list[str], parts: list[str]) -> None:
    message = complaint(*overrides)
    for part in parts:
        assert part in message


def test_C04_a_chat_models_key_must_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARISE_TEST_KEY", raising=False)
    overrides = [
        "rubrics.mode=dynamic",
        "curriculum.sampler=uniform",
        "judge=openai",
        "judge.model=m",
        "judge.api_key_env=ARISE_TEST_KEY",
    ]
    message = complaint(*overrides)
    assert "judge.api_key_env" in message
    assert "ARISE_TEST_KEY" in message
    monkeypatch.setenv("ARISE_TEST_KEY", "x")
    validate(composed(*overrides))


def test_every_process_must_have_its_part() -> None:
    validate(composed("trainer.devices=2", "trainer.num_nodes=2"))
    validate(composed("trainer.devices=4", "model.tensor_parallel=2", "model.sequence_parallel=2"))
    message = complaint("trainer.devices=2", "trainer.strategy.data_parallel_size=1")
    assert "trainer.strategy.data_parallel_size = 1 x model.sequence_parallel = 1" in message
    assert "not trainer.devices x trainer.num_nodes = 2 x 1; set it to auto or 2" in message
    message = complaint("trainer.devices=4", "model.tensor_parallel=3")
    assert "model.tensor_parallel = 3 is not trainer.devices" in message
    assert "choose sizes whose product divides the processes" in message
    message = complaint("trainer.devices=2", "model.sequence_parallel=4")
    assert "model.sequence_parallel = 4" in message
    message = complaint("trainer.strategy.tensor_parallel_size=2")
    assert "set model.tensor_parallel alone" in message


def test_offloaded_activations_are_checkpointed_ones() -> None:
    validate(composed("model.cpu_offload=both", "model.activation_checkpointing=true"))
    assert "model.activation_checkpointing is false" in complaint("model.cpu_offload=activations")


def test_adapters_are_not_cut() -> None:
    overrides = ("trainer.devices=2", "model.tensor_parallel=2", "model.lora.rank=8")
    assert "model.tensor_parallel = 2 cuts no adapters" in complaint(*overrides)


@pytest.mark.parametrize("key", ["repetition_penalty", "presence_penalty", "min_p"])
def test_T08_penalties_in_training_rollouts_are_refused(key: str) -> None:
    message = complaint(f"+rollout.{key}=1.1")
    assert f"rollout.{key} = 1.1" in message
    assert "rollout.temperature alone" in message


def test_adapters_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    validate(composed("model.lora.rank=0"))
    monkeypatch.setattr("arise.validation.find_spec", lambda name: None)
    message = complaint("model.lora.rank=8")
    assert "model.lora.rank = 8" in message
    assert "arise[lora]" in message
