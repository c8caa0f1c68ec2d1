"""The whole cycle offline: real judge, buffer, reflection, evolution and pool, no model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

from arise.rubrics.diagnostics import EvidenceBuffer
from arise.rubrics.evolution import Evolution, EvolutionReport
from arise.rubrics.judge import Judge, JudgeOptions
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.pool import RubricPool
from arise.rubrics.prompting import Prompts
from arise.rubrics.reflection import Reflection
from arise.tasks.shellworld.behaviours import Behaviour
from arise.tasks.shellworld.rules import RulesModel
from arise.types import FinishReason, Outcome, Review, Task, Trajectory, Turn

TASK = Task(
    id="pack-1",
    instruction="Use pack.sh to make oak.txt from elm.txt. See rules.md. Then remove ash.tmp.",
    path=Path("pack-1"),
    tests=Path("pack-1/tests"),
    tags=("pack",),
)
GROUP = 10
MAKE = "sh pack.sh elm.txt oak.txt"


def turn(command: str, observation: str = "", exit_code: int | None = None) -> Turn:
    return Turn(
        prompt_token_ids=(),
        token_ids=(),
        logprobs=(),
        policy_versions=(),
        text=command,
        action=command,
        observation=observation,
        exit_code=exit_code,
    )


def commands(shows: Mapping[Behaviour, bool]) -> tuple[Turn, ...]:
    """An episode that shows some behaviours; what is not named is shown."""
    turns = [] if shows.get(Behaviour.THRIFT, True) else [turn("ls", "elm.txt", 0)]
    if shows.get(Behaviour.READ, True):
        turns.append(turn("cat rules.md", "keep it plain", 0))
    turns.append(turn(MAKE, "[exit 2]\nneed volume opal", 2))
    if not shows.get(Behaviour.HEED, True):
        turns.append(turn(MAKE, "[exit 2]\nneed volume opal", 2))
    turns.append(turn(f"{MAKE} opal", "[ok]", 0))
    if shows.get(Behaviour.VERIFY, True):
        turns.append(turn("cat oak.txt", "x", 0))
    if shows.get(Behaviour.FINISH, True):
        turns.append(turn("rm ash.tmp", "[ok]", 0))
    return (*turns, turn("submit"))


class World:
    """The parts of one run, driven window by window."""

    def __init__(self, max_new_pairs_per_update: int = 2) -> None:
        prompts = Prompts()
        self.pool = RubricPool(max_pairs=64, max_new_pairs=8, max_text_chars=2000)
        self.buffer = EvidenceBuffer(max_records=256)
        self.judge = Judge(
            model=RulesModel(role="judge"),
            prompts=prompts,
            options=JudgeOptions(
                max_concurrency=4, rubrics_per_request=2, trace_budget_tokens=32_768
            ),
        )
        model = RulesModel(
            role="reflection",
            max_new_pairs_per_update=max_new_pairs_per_update,
            min_gap_share=0.2,
            min_gap_records=3,
        )
        self.reflection = Reflection(model=model, prompts=prompts)
        self.evolution = Evolution(eta_low=0.3, eta_high=0.9, update_interval=5)
        self.step = 0
        self.reviews: list[Review] = []

    def window(self, rates: Mapping[Behaviour, float]) -> EvolutionReport:
        """Ten episodes in which each behaviour is shown at its rate (else always); an update."""
        self.reviews = []
        for rollout in range(GROUP):
            shows = {behaviour: rollout < rate * GROUP for behaviour, rate in rates.items()}
            trajectory = Trajectory(
                task_id=TASK.id,
                rollout=rollout,
                turns=commands(shows),
                finish_reason=FinishReason.SUBMITTED,
                task_reward=float(rollout % 2),
                skills=self.pool.active_skills(),
                instruction=TASK.instruction,
            )
            review = asyncio.run(self.judge.review(TASK, trajectory, self.pool.pairs))
            assert (review.error, review.num_invalid) == ("", 0)
            self.buffer.observe(self.step, TASK, trajectory, review)
            self.pool.observe(TASK.id, review.verdicts)
            self.reviews.append(review)
        self.step += 5
        return asyncio.run(
            self.evolution.update(
                self.step, self.pool, self.buffer, self.reflection, random.Random(0)
            )
        )


def story(report: EvolutionReport) -> list[tuple[str, int | None]]:
    assert not any(event.get("error") for event in report.events)
    return [
        (event["type"], event.get("pair_id"))
        for event in report.events
        if event["type"] != "generation"
    ]


READ, VERIFY, FINISH = Behaviour.READ, Behaviour.VERIFY, Behaviour.FINISH


def test_a_pair_lives_from_evidence_to_retirement() -> None:
    world = World()
    report = world.window({VERIFY: 0.0, READ: 0.2})
    assert story(report) == [("created", 1), ("created", 2)]
    assert [pair.title for pair in world.pool.pairs] == [
        "Look at the result after writing it",
        "Read the named document before writing",
    ]
    evidence = next(event["evidence"] for event in report.events if event.get("pair_id") == 2)
    assert [entry["rollout"] for entry in evidence["contrasts"]] == [0, 1]
    assert [entry["rollout"] for entry in evidence["issues"]] == [2, 3, 4, 5, 6, 7, 8, 9]

    assert story(world.window({VERIFY: 0.2, READ: 0.5})) == [("activated", 1), ("kept", 2)]
    first = world.pool[1].skill.text
    assert story(world.window({VERIFY: 0.3, READ: 0.7})) == [("refined", 1), ("kept", 2)]
    second = world.pool[1].skill.text
    assert story(world.window({VERIFY: 0.1, READ: 0.8})) == [("refined", 1), ("kept", 2)]
    third = world.pool[1].skill.text
    assert len({first, second, third}) == 3
    assert world.pool[1].skill.revision == 2

    # The requirement that retires now blocks its own return, and later there is no gap.
    assert story(world.window({VERIFY: 0.6, READ: 0.9})) == [("hidden", 1), ("retired", 2)]
    assert story(world.window({VERIFY: 0.7, READ: 0.9})) == [("kept", 1)]
    assert story(world.window({VERIFY: 1.0})) == [("retired", 1)]
    assert len(world.pool) == 0
    # Initial analysis again; a behaviour that is lost comes back under a new id.
    assert story(world.window({READ: 0.4})) == [("created", 3)]
    assert world.reviews[0].judged_pair_ids == ()


def test_the_pool_grows_over_several_updates() -> None:
    world = World(max_new_pairs_per_update=2)
    half = dict.fromkeys(Behaviour, 0.5)
    sizes = [world.window(half).num_pairs for _ in range(4)]
    assert sizes == [2, 4, 5, 5]
    assert {pair.capability for pair in world.pool.pairs} == {
        "understanding",
        "debugging",
        "verification",
        "execution",
        "efficiency",
    }
    assert all(entry.covered_by is not None for entry in world.reviews[0].diagnostics)


def test_a_pool_of_another_run_is_recognised() -> None:
    first = World(max_new_pairs_per_update=8)
    first.window(dict.fromkeys(Behaviour, 0.4))
    saved = [pair.to_dict() for pair in first.pool.pairs]
    assert len(saved) == 5
    for pair in saved:
        pair["title"] = pair["title"].upper()
    second = World()
    second.pool.import_pairs(
        [RubricSkillPair.from_dict(data, where="pool.jsonl") for data in saved]
    )
    report = second.window({VERIFY: 0.5, FINISH: 0.0})
    outcomes = [list(review.outcomes.values()) for review in second.reviews]
    by_title = dict(zip((p["title"] for p in saved), zip(*outcomes, strict=True), strict=True))
    verdicts = by_title["LOOK AT THE RESULT AFTER WRITING IT"]
    assert verdicts == (Outcome.PASS,) * 5 + (Outcome.FAIL,) * 5
    assert set(by_title["CARRY OUT THE LAST STEP OF THE INSTRUCTION"]) == {Outcome.FAIL}
    assert set(by_title["ACT ON WHAT AN ERROR MESSAGE SAYS"]) == {Outcome.PASS}
    assert "created" not in report.counts
