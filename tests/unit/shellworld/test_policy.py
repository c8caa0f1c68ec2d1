"""The bundled policy: size, form, and that a sentence steers it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from arise.tasks.shellworld import figures
from arise.tasks.shellworld.batches import by_length, copy_samples
from arise.tasks.shellworld.behaviours import Behaviour
from arise.tasks.shellworld.episode import CONTEXT_TOKENS
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.local_shell import LocalShell
from arise.tasks.shellworld.measure import POLICY, load_policy
from arise.tasks.shellworld.sampling import Episode, Sampler
from arise.tasks.shellworld.skills import HELD_BACK, SEEN, wordings
from arise.tasks.shellworld.tokenizer import build_tokenizer
from arise.tasks.shellworld.transcripts import make_transcripts
from arise.tasks.shellworld.warmstart import WarmStart, batch_loss, new_model, to_sample, train


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    return load_policy(POLICY)


@pytest.fixture(scope="module")
def sampler(policy: tuple[Any, Any]) -> Iterator[Sampler]:
    with LocalShell() as shell:
        yield Sampler(*policy, shell, 0)


def play(sampler: Sampler, skills: list[str], count: int = 96) -> list[Episode]:
    return sampler.play([(spec, skills) for spec in generate_tasks("heldout", count, 9)])


@pytest.fixture(scope="module")
def plain(sampler: Sampler) -> list[Episode]:
    return play(sampler, [])


def test_it_is_small_and_complete(policy: tuple[Any, Any]) -> None:
    model, _ = policy
    assert 300_000 <= sum(tensor.numel() for tensor in model.parameters()) <= 3_000_000
    assert sum(path.stat().st_size for path in POLICY.iterdir()) <= 8 * 2**20
    for name in ("config.json", "generation_config.json", "MODEL_CARD.md", "tokenizer.json"):
        assert (POLICY / name).stat().st_size > 0
    assert json.loads((POLICY / "config.json").read_text())["max_position_embeddings"] == 512


def test_its_tokenizer_is_the_one_that_the_code_builds(policy: tuple[Any, Any]) -> None:
    _, tokenizer = policy
    built = build_tokenizer()
    assert tokenizer.get_vocab() == built.get_vocab()
    assert tokenizer.chat_template == built.chat_template
    assert tokenizer.eos_token == "<|end|>"
    text = "Use pack.sh to make oak.txt from elm.txt. See rules.md.\n[exit 2] Ünï"
    assert tokenizer(text)["input_ids"] == built(text)["input_ids"]


def test_it_writes_commands_and_copies_names(plain: list[Episode]) -> None:
    assert figures.well_formed(plain) >= 0.95
    assert figures.names_copied(plain) >= 0.95
    assert figures.values_copied(plain) >= 0.95
    assert 0.1 <= figures.pass_rate(plain) <= 0.3


def test_it_hardly_ever_looks_at_its_result_unprompted(plain: list[Episode]) -> None:
    assert figures.behaviour_rate(plain, Behaviour.VERIFY) <= 0.04


def test_unseen_families_are_within_reach(sampler: Sampler) -> None:
    """Their scripts' names have to be copied: neither training nor warm start has the families."""
    found = sampler.play([(spec, []) for spec in generate_tasks("unseen", 96, 9)])
    assert figures.pass_rate(found) >= 0.1
    assert figures.names_copied(found) >= 0.95


@pytest.mark.parametrize(
    ("behaviour", "bank"),
    [
        (b, bank)
        for b in (Behaviour.READ, Behaviour.HEED, Behaviour.VERIFY)
        for bank in (SEEN, HELD_BACK)
    ],
)
def test_a_sentence_steers_it(
    sampler: Sampler,
    plain: list[Episode],
    behaviour: Behaviour,
    bank: Mapping[Behaviour, tuple[str, ...]],
) -> None:
    sentences = [wordings(template)[0] for template in bank[behaviour][:3]]
    steered = [episode for text in sentences for episode in play(sampler, [text], 48)]
    lift = figures.behaviour_rate(steered, behaviour) - figures.behaviour_rate(plain, behaviour)
    assert lift >= 0.1


def test_episodes_keep_to_the_limits(plain: list[Episode]) -> None:
    for episode in plain:
        assert len(episode.ids) == len(episode.generated) <= CONTEXT_TOKENS
        assert len(episode.steps) <= 8


def test_transcripts_fit_the_context() -> None:
    tokenizer = build_tokenizer()
    longest = max(
        len(to_sample(t, tokenizer, 0.1, random.Random(0)).ids) for t in make_transcripts(800, 3)
    )
    assert longest + 32 <= CONTEXT_TOKENS


def test_training_is_a_function_of_the_seed() -> None:
    tokenizer, recipe = build_tokenizer(), WarmStart(num_transcripts=60, layers=2)
    transcripts = make_transcripts(60, 0)
    models = []
    for _ in range(2):
        model, progress = train(recipe, transcripts, tokenizer, 5)
        assert list(progress)
        models.append(model.state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_batch_loss_is_the_mean_over_weighted_tokens() -> None:
    """Split by rows and combined by weight, the loss is the same: padding counts nothing."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = new_model(WarmStart(hidden=48, layers=1), tokenizer)
    samples = [to_sample(t, tokenizer, 0.1, random.Random(0)) for t in make_transcripts(6, 0)]
    pad = tokenizer.pad_token_id
    (whole,) = by_length(samples, 10**6, pad, random.Random(0))
    singles = list(by_length(samples, 1, pad, random.Random(0)))
    total = sum(float(batch_loss(model, b)) * float(b.weights[:, 1:].sum()) for b in singles)
    assert len(singles) == 6
    assert float(batch_loss(model, whole)) == pytest.approx(
        total / float(whole.weights[:, 1:].sum()), rel=1e-5
    )


def test_copying_exercises_ask_for_what_was_seen() -> None:
    tokenizer = build_tokenizer()
    for sample in copy_samples(tokenizer, 50, random.Random(1)):
        for index, weight in enumerate(sample.weights):
            if weight:
                assert sample.ids[index] in sample.ids[:index]
