"""Every shipped experiment trains for two iterations in process, and does what sets it apart."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arise import app
from arise.rubrics.events import lifetime_pairs, read_events
from arise.rubrics.pool_file import pool_file
from runs import ROOT, compose_config, only_run, trajectories

CONFIGS = ROOT / "configs" / "experiment"
EXPERIMENTS = sorted(
    path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.yaml")
)
RECORDED = pool_file("arise.tasks.shellworld:pools/recorded.jsonl")
SMALL = (
    "debug=tiny",
    "trainer.max_steps=2",
    "rubrics.update_interval=1",
    "rollout.tasks_per_step=3",
    "datamodule.generator.count=12",
    "quiet=true",
)
Runs = Callable[[str], Path]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The folder of an experiment's run, which is made once."""
    output_dir = tmp_path_factory.mktemp("outputs")

    @functools.cache
    def run(experiment: str) -> Path:
        cfg = compose_config(f"experiment={experiment}", *SMALL, f"paths.output_dir={output_dir}")
        app.train(cfg)
        return only_run(output_dir, cfg.experiment_name)

    return run


def slots(run: Path) -> list[dict[str, Any]]:
    return [slot for records in trajectories(run).values() for slot in records]


def events(run: Path) -> list[dict[str, Any]]:
    path = run / "pool.jsonl"
    return read_events(path, key="pool.jsonl") if path.is_file() else []


def test_the_nine_of_the_paper_and_the_controls_are_there() -> None:
    assert EXPERIMENTS == [
        "ablation/frozen_rubrics",
        "ablation/no_adaptive_sampling",
        "ablation/no_skill_injection",
        "ablation/outcome_only",
        "ablation/vade_sampling",
        "arise",
        "baseline/online_rubrics",
        "baseline/ruscarl",
        "baseline/vade",
        "control/oracle",
        "control/placebo",
    ]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_two_iterations(experiment: str, run_of: Runs) -> None:
    records = slots(run_of(experiment))
    assert len(records) == 2 * 3 * 2
    assert not any("failure" in slot for slot in records)
    assert all(isinstance(slot["advantage"], float) for slot in records)


@pytest.mark.parametrize("experiment", ["ablation/outcome_only", "baseline/vade"])
def test_without_rubrics_nothing_is_judged(experiment: str, run_of: Runs) -> None:
    run = run_of(experiment)
    assert not any("review" in slot for slot in slots(run))
    assert events(run) == []


@pytest.mark.parametrize(
    ("experiment", "reasons"),
    [
        ("arise", {"discovery", "adaptive", "fallback"}),
        ("ablation/no_adaptive_sampling", {"uniform"}),
        ("ablation/vade_sampling", {"vade"}),
        ("ablation/outcome_only", {"uniform"}),
        ("baseline/vade", {"vade"}),
        ("baseline/ruscarl", {"uniform"}),
        ("baseline/online_rubrics", {"uniform"}),
    ],
)
def test_how_tasks_are_sampled(experiment: str, reasons: set[str], run_of: Runs) -> None:
    assert {slot["sampled_by"] for slot in slots(run_of(experiment))} <= reasons


def test_frozen_starts_with_the_whole_recorded_pool_and_keeps_it(run_of: Runs) -> None:
    run = run_of("ablation/frozen_rubrics")
    recorded = lifetime_pairs(read_events(RECORDED, key="rubrics.pool_path"))
    ids = [pair.id for pair in recorded]
    assert all(slot["review"]["judged_pair_ids"] == ids for slot in slots(run))
    found = events(run)
    assert [event["pair_id"] for event in found if event["type"] == "imported"] == ids
    assert not {event["type"] for event in found} & {"created", "retired", "generation"}
    assert "activated" in {event["type"] for event in found}
    # The second iteration shows what the first one's update switched on.
    active = [e["pair_id"] for e in found if e["type"] == "activated" and e["step"] == 1]
    second = trajectories(run)["step_000002.jsonl.gz"]
    assert all([skill["pair_id"] for skill in slot["skills"]] == active for slot in second)


def test_without_injection_no_prompt_holds_a_skill(run_of: Runs) -> None:
    run = run_of("ablation/no_skill_injection")
    assert {event["type"] for event in events(run)} >= {"created"}
    assert not any(slot["skills"] for slot in slots(run))


def test_ruscarl_shows_the_first_rollout_all_and_the_last_none(run_of: Runs) -> None:
    """G = 2, T = 2: ratios 1 and 0; the factor is 1 at step 1 and 0 at step 2."""
    run = run_of("baseline/ruscarl")
    count = len(lifetime_pairs(read_events(RECORDED, key="rubrics.pool_path")))
    for step, records in enumerate(trajectories(run).values(), start=1):
        for slot in records:
            expected = count if (step, slot["rollout"]) == (1, 0) else 0
            assert len(slot["skills"]) == expected
            verdicts = [v["outcome"] for v in slot["review"]["verdicts"]]
            points = [v == "pass" for v in verdicts if v != "not_applicable"]
            assert slot["shaped_reward"] == pytest.approx(sum(points) / len(points))
    assert {event["type"] for event in events(run)} == {"imported"}


def test_online_criteria_live_one_step(run_of: Runs) -> None:
    run = run_of("baseline/online_rubrics")
    assert events(run) == []
    for slot in slots(run):
        ids = [criterion["id"] for criterion in slot["criteria"]]
        assert ids == list(range(1, len(ids) + 1))
        assert slot["review"]["judged_pair_ids"] == ids
        weights = {c["id"]: c["weight"] for c in slot["criteria"]}
        outcomes = {v["pair_id"]: v["outcome"] for v in slot["review"]["verdicts"]}
        met = sum(weights[i] for i, outcome in outcomes.items() if outcome == "pass")
        possible = sum(weights[i] for i, outcome in outcomes.items() if outcome != "not_applicable")
        reward = (5 * (slot["task_reward"] >= 1) + met) / (5 + possible)
        assert slot["shaped_reward"] == pytest.approx(reward)


def test_the_oracle_pool_never_changes_and_is_never_shown(run_of: Runs) -> None:
    run = run_of("control/oracle")
    assert {event["type"] for event in events(run)} == {"imported"}
    assert all(slot["review"]["judged_pair_ids"] == [1, 2, 3, 4, 5] for slot in slots(run))
    assert not any(slot["skills"] for slot in slots(run))


def test_the_placebo_differs_from_arise_in_verdicts_alone(run_of: Runs) -> None:
    """In the first judged iteration, the multiset of each group's verdicts is the same."""

    def table(experiment: str) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for slot in trajectories(run_of(experiment))["step_000002.jsonl.gz"]:
            groups.setdefault(slot["task_id"], []).extend(
                json.dumps([v["pair_id"], v["outcome"]]) for v in slot["review"]["verdicts"]
            )
        return {task: sorted(verdicts) for task, verdicts in groups.items()}

    assert table("control/placebo") == table("arise")
