"""The method on the bundled suite with the bundled policy and the offline judge, in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arise import app
from arise.rubrics.events import replay
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
