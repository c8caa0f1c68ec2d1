"""The whole road in process: five hand-written Harbor tasks, real sandboxes, a random policy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from arise import app
from arise.errors import ConfigError
from arise.modules.checkpoint_weights import load_checkpoint_weights
from arise.modules.loading import RandomModel
from arise.runs.folder import complete_checkpoints
from runs import TASKS, TINY, compose_config, only_run, trajectories


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("outputs")
    app.train(compose_config(*TINY, f"paths.output_dir={output_dir}", "quiet=true"))
    return only_run(output_dir)


def test_every_slot_is_recorded(run: Path) -> None:
    records = trajectories(run)
    assert list(records) == [f"step_{step:06d}.jsonl.gz" for step in (1, 2, 3)]
    for step, slots in enumerate(records.values()):
        assert [(slot["iteration"], slot["rollout"]) for slot in slots] == [
            (step, rollout) for _ in range(2) for rollout in range(2)
        ]
        assert len({slot["task_id"] for slot in slots}) == 2
        assert not any("failure" in slot for slot in slots)
        assert {slot["task_id"] for slot in slots} <= {path.name for path in TASKS.iterdir()}


def test_recorded_tokens_are_exactly_what_the_policy_saw(run: Path) -> None:
    """A record alone gives the row, and the row alone gives the behaviour log-probabilities."""
    tokenizer = AutoTokenizer.from_pretrained(run / "final_model")
    for slot in trajectories(run)["step_000001.jsonl.gz"]:
        for turn in slot["turns"]:
            assert 0 < len(turn["token_ids"]) <= 16
            assert len(turn["token_ids"]) == len(turn["logprobs"]) == len(turn["policy_versions"])
            assert set(turn["policy_versions"]) == {0}
            text = tokenizer.decode(turn["token_ids"], skip_special_tokens=True)
            assert text == turn["text"]
            assert all(value < 0 for value in turn["logprobs"])
            if turn["finish_reason"] == "length":
                # Nothing is appended to a reply that was cut off.
                assert turn["token_ids"][-1] != tokenizer.eos_token_id


def test_final_model_loads_and_differs_from_the_start(run: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run / "final_model")
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert AutoTokenizer.from_pretrained(run / "final_model").chat_template


def test_last_step_is_checkpointed(run: Path) -> None:
    assert [path.name for path in complete_checkpoints(run)] == ["step_000003"]
    assert not list((run / "checkpoints").glob(".saving*"))


def test_scalars_are_logged_once_a_step(run: Path) -> None:
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    for tag in ("reward/pass_rate", "loss/policy", "loss/grad_norm", "time/rollout_s"):
        assert [point.step for point in events.Scalars(tag)] == [1, 2, 3]
    assert all(math.isfinite(p.value) for tag in tags for p in events.Scalars(tag))
    for point in events.Scalars("ratio/max"):
        assert point.value == pytest.approx(1.0, abs=1e-4)
    # 1e-3 * min(1, n / 5), rounded to float32 by TensorBoard
    learning_rates = [point.value for point in events.Scalars("loss/lr")]
    assert learning_rates == pytest.approx([2e-4, 4e-4, 6e-4], rel=1e-6)


def test_configuration_is_kept(run: Path) -> None:
    assert "rubric_weight: 0.3" in (run / ".hydra" / "config.yaml").read_text()


def test_a_checkpoint_gives_its_weights_and_no_others(run: Path) -> None:
    (checkpoint,) = complete_checkpoints(run)
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64}
    model = RandomModel(seed=9, context_tokens=4096, **sizes).model()
    load_checkpoint_weights(model, checkpoint)
    final = AutoModelForCausalLM.from_pretrained(run / "final_model").state_dict()
    assert set(final) == set(model.state_dict())
    for name, value in model.state_dict().items():
        assert value.equal(final[name]), name
    other = RandomModel(seed=9, context_tokens=4096, **{**sizes, "num_layers": 3}).model()
    with pytest.raises(ConfigError, match="of another model"):
        load_checkpoint_weights(other, checkpoint)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_checkpoint_weights(model, run)
