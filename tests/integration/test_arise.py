"""The method on the bundled suite with the bundled policy and the offline judge, in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arise import app
from arise.rubrics.events import replay
from arise.runs.report.build import write_report
from arise.runs.report.vocabulary import token_texts
from documented import documented_scalars, undocumented
from runs import compose_config, only_run, trajectories

pytestmark = pytest.mark.slow
STEPS = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("outputs")
    app.train(
        compose_config(
            "experiment=arise",
            f"paths.output_dir={output_dir}",
            f"trainer.max_steps={STEPS}",
            "rubrics.update_interval=2",
            "rollout.tasks_per_step=6",
            "rollout.rollouts_per_task=4",
            "datamodule.generator.count=64",
            "evaluation.generator.count=12",
            "evaluation.extra.unseen.generator.count=4",
            "quiet=true",
        )
    )
    return only_run(output_dir, "arise")


@pytest.fixture(scope="module")
def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "pool.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def scalars(run: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    return accumulator


def test_pairs_are_born_from_evidence_and_activated(events: list[dict[str, Any]]) -> None:
    created = [event for event in events if event["type"] == "created"]
    assert created
    assert all(event["step"] % 2 == 0 for event in events)
    assert all(event["evidence"]["issues"] for event in created)
    activated = [event for event in events if event["type"] == "activated"]
    assert activated
    assert all(event["pass_rate"] <= 0.3 for event in activated)


def test_every_transition_follows_the_thresholds(events: list[dict[str, Any]]) -> None:
    for event in events:
        rate = event.get("pass_rate")
        if rate is None:
            continue
        assert rate == event["num_passes"] / event["num_applicable"]
        assert (event["type"] == "retired") == (rate >= 0.9)
        if event["type"] in ("activated", "refined"):
            assert rate <= 0.3
        if event["type"] == "hidden":
            assert 0.3 < rate < 0.9


def test_active_skills_and_only_those_are_in_the_prompts(
    run: Path, events: list[dict[str, Any]]
) -> None:
    for step, slots in enumerate(trajectories(run).values(), start=1):
        pairs = replay(events, until_step=step - 1)
        expected = [
            {"pair_id": pair.id, "revision": pair.skill.revision, "text": pair.skill.text}
            for pair in pairs.values()
            if pair.is_active
        ]
        for slot in slots:
            assert slot["skills"] == expected
            assert slot["review"]["judged_pair_ids"] == sorted(pairs)
            assert slot["review"]["error"] == ""


def test_rubric_verdicts_give_advantage_where_the_reward_gives_none(run: Path) -> None:
    found = 0
    for slots in trajectories(run).values():
        groups: dict[str, list[dict[str, Any]]] = {}
        for slot in slots:
            groups.setdefault(slot["task_id"], []).append(slot)
        for group in groups.values():
            if len({slot["shaped_reward"] for slot in group}) == 1:
                found += any(slot["advantage"] for slot in group)
    assert found > 0


def test_sampling_starts_with_discovery(run: Path, scalars: EventAccumulator) -> None:
    first = trajectories(run)["step_000001.jsonl.gz"]
    assert {slot["sampled_by"] for slot in first} == {"discovery"}
    assert scalars.Scalars("sampler/discovery_probability")[0].value == 1.0


def test_what_a_person_watches_is_logged(scalars: EventAccumulator) -> None:
    tags = scalars.Tags()
    for tag in ("reward/pass_rate", "pool/size", "pool/active_skills", "sampler/coverage"):
        assert [point.step for point in scalars.Scalars(tag)] == list(range(1, STEPS + 1))
    assert any(tag.startswith("rubric/pass_rate_") for tag in tags["scalars"])
    assert [point.step for point in scalars.Scalars("evaluation/pass_rate")] == [0, STEPS]
    assert "pool/story/text_summary" in tags["tensors"]


def test_every_scalar_of_a_run_is_documented(scalars: EventAccumulator) -> None:
    names = scalars.Tags()["scalars"]
    assert undocumented(names) == []
    # The other way round, for what every run has; the rest needs a baseline, an endpoint, a fault.
    for name in documented_scalars():
        group = name.partition("/")[0]
        if group in ("loss", "ratio", "reward", "engine", "system") and "<" not in name:
            assert name in names


def test_tensorboard_has_pictures_a_first_page_and_a_text_for_each_pair(
    scalars: EventAccumulator, events: list[dict[str, Any]]
) -> None:
    tags = scalars.Tags()
    assert set(tags["images"]) >= {"figures/feedback"}
    assert "custom_scalars__config__" in tags["tensors"]
    for event in events:
        if event["type"] in ("created", "refined", "retired"):
            tag = f"pair/R{event['pair_id']}/text_summary"
            assert event["step"] in [text.step for text in scalars.Tensors(tag)]


def test_ratios_and_texts_of_tokens_are_recorded(run: Path) -> None:
    for slots in trajectories(run).values():
        for turn in (turn for slot in slots for turn in slot["turns"]):
            assert len(turn["log_ratios"]) == len(turn["token_ids"])
            assert all(abs(value) <= 1e-4 for value in turn["log_ratios"]), "on-policy"
    ids = {token for turn in slots[0]["turns"] for token in turn["token_ids"]}
    assert set(token_texts(run, ids)) == ids
    assert write_report(run, run / "report.html", max_mb=10.0).num_steps == STEPS
