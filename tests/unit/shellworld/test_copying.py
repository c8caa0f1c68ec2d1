"""The initial weights copy before any training."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from arise.tasks.shellworld.batches import by_length, copy_samples
from arise.tasks.shellworld.copying import ROPE_THETA, seed_copying
from arise.tasks.shellworld.disguise import disguise
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.simulate import SimulatedShell
from arise.tasks.shellworld.tokenizer import build_tokenizer
from arise.tasks.shellworld.warmstart import WarmStart, batch_loss, new_model

TOKENIZER: Any = build_tokenizer()


@pytest.fixture
def exercises() -> Any:
    samples = copy_samples(TOKENIZER, 60, random.Random(0))
    return next(iter(by_length(samples, 4096, TOKENIZER.pad_token_id, random.Random(0))))


def accuracy(model: Any, batch: Any) -> float:
    with torch.inference_mode():
        best = model(input_ids=batch.input_ids).logits[:, :-1].argmax(-1)
    asked = batch.weights[:, 1:] > 0
    return float((best == batch.input_ids[:, 1:])[asked].float().mean())


def test_seeded_heads_copy_without_training(exercises: Any) -> None:
    torch.manual_seed(0)
    model = new_model(WarmStart(), TOKENIZER)
    assert dict(model.config.rope_parameters or {})["rope_theta"] == ROPE_THETA
    assert accuracy(model, exercises) < 0.05
    seed_copying(model, 0)
    assert accuracy(model, exercises) > 0.98
    assert batch_loss(model, exercises).item() < 0.2


def test_the_seed_decides(exercises: Any) -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = new_model(WarmStart(), TOKENIZER)
        seed_copying(model, seed)
        models.append(model.state_dict())
    table = "model.embed_tokens.weight"
    assert torch.equal(models[0][table], models[1][table])
    assert not torch.equal(models[0][table], models[2][table])


def test_a_disguised_task_is_still_solved_by_its_solution() -> None:
    rng = random.Random(3)
    changed = 0
    for spec in generate_tasks("train", 120, 8):
        hidden = disguise(spec, rng)
        changed += hidden != spec
        shell = SimulatedShell(hidden)
        for command in hidden.plan.solution():
            shell.run(command)
        assert shell.grade() == 1.0, hidden.id
        if hidden != spec:
            script = next(name for name in spec.draft.files if name.endswith(".sh"))
            assert script not in hidden.draft.files
            assert script not in hidden.instruction
    assert changed > 40
