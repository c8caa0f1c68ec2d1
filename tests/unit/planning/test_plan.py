"""`dry_run=true`: what it says, and that it starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from arise import app
from arise.dry_run import plan_of
from arise.planning.__main__ import table
from arise.planning.plan import step_cost
from arise.planning.report import as_tables
from arise.validation import validate
from runs import ROOT, TASKS, TINY, compose_config

GPUS = (
    "experiment=arise",
    "scale=paper_32gpu",
    "model=random_tiny",
    "datamodule=folder",
    f"datamodule.corpus={TASKS}",
    "evaluation=none",
    "engine.num_servers=null",
    "engine.urls=[http://a:8000,http://b:8000]",
    "engine.args=[--tensor-parallel-size,2]",
    "judge=openai",
    "judge.model=judge-1",
    "judge.base_url=http://judge/v1",
    "judge.api_key_env=null",
    "judge.rubrics_per_request=16",
    "model.activation_checkpointing=true",
    "model.cpu_offload=activations",
    "model.tensor_parallel=2",
)


def checked(*overrides: str) -> DictConfig:
    cfg = compose_config(*overrides)
    validate(cfg)
    OmegaConf.resolve(cfg)
    return cfg


def text_of(plan: Any) -> str:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(as_tables(plan))
    return capture.get()


def test_a_dry_run_ends_after_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sandbox could not start, and nothing is written."""
    app.train(
        compose_config(
            *TINY,
            "dry_run=true",
            f"paths.output_dir={tmp_path}",
            "environment._target_=no.such.Factory",
        )
    )
    text = capsys.readouterr().out
    for title in ("What runs where", "Memory of a trainer rank", "Memory of the engine"):
        assert title in text
    assert "One step, at most" in text
    assert "Nothing was started" in text
    assert not list(tmp_path.iterdir())


def test_places_of_a_run_on_many_gpus() -> None:
    text = " ".join(text_of(plan_of(checked(*GPUS))).split())
    assert "16 processes, 8 on each of 2 nodes (gpu): 8 replicas" in text
    assert "x 1 sequence-parallel x 2 tensor-parallel" in text
    assert "vLLM, 2 running servers: http://a:8000, http://b:8000" in text
    assert "256 at once, 1024 MiB each" in text
    assert "256.0 GiB if all use that" in text
    assert "judge-1 at http://judge/v1, 32 requests at once" in text
    assert "layers computed again, activations on the host" in text


def test_cost_of_a_step_by_hand() -> None:
    plan = plan_of(checked(*GPUS))
    cost = plan.cost
    assert cost.episodes == 32 * 8
    assert cost.tokens == 32 * 8 * 131_072
    # 256 rows of 131,072 tokens, one a micro-batch, over 8 replicas.
    assert cost.micro_batches == 32
    # 64 pairs, 16 in a request.
    assert cost.judge_calls == 256 * 4
    assert cost.judge_tokens == 256 * 4 * 32_768
    assert (cost.reflection_calls, cost.update_interval) == (65, 10)


def test_without_rubrics_nobody_is_asked() -> None:
    cfg = checked(*TINY)
    plan = plan_of(cfg)
    cost = step_cost(cfg, plan.setup)
    assert (cost.judge_calls, cost.judge_tokens, cost.reflection_calls) == (0, 0, 0)
    assert ("judge", "not used") in plan.places


def test_adapters_alone_have_gradients_and_moments() -> None:
    plan = plan_of(checked(*TINY, "model.lora.rank=2"))
    memory = plan.memory
    # Two layers of width 32: four matrices of 32 x 32 and three of 32 x 64.
    num_adapters = 2 * 2 * (4 * 64 + 3 * 96)
    assert plan.sizes.num_adapters == num_adapters
    assert memory.gradients == 4 * num_adapters
    assert memory.optimizer == 8 * num_adapters


@pytest.mark.slow
def test_the_table_in_the_docs_is_the_models() -> None:
    text = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    for line in table().splitlines():
        assert line in text
