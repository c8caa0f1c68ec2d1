"""The scheduled update as a whole: order, calls, failures, variants."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from arise.errors import ConfigError, JudgeError
from arise.llm.chat import ChatRequest, Purpose
from arise.llm.scripted import ScriptedChatModel
from arise.rubrics.diagnostics import EvidenceBuffer
from arise.rubrics.evolution import Evolution, EvolutionReport
from arise.rubrics.pool import RubricPool
from arise.rubrics.prompting import Prompts
from arise.rubrics.reflection import Reflection
from arise.types import Diagnostic, FinishReason, Outcome, Review, Task, Trajectory, Verdict

PASS, FAIL = Outcome.PASS, Outcome.FAIL


def proposal(title: str, **fields: object) -> dict:
    texts = {
        "capability": "verification",
        "applicability": "a",
        "fail_condition": "f",
        "pass_condition": "p",
        "skill": f"do {title}",
    }
    return {"title": title, **texts, **fields}


class World:
    """A pool, its buffer and a scripted reflection, driven window by window."""

    def __init__(self, max_pairs: int = 64, **thresholds: float) -> None:
        self.pool = RubricPool(max_pairs=max_pairs, max_new_pairs=8, max_text_chars=4000)
        self.buffer = EvidenceBuffer(max_records=256)
        self.new: list[dict] = []
        self.refine: Callable[[ChatRequest], str] = lambda r: json.dumps(
            {"skill": f"{r.payload.skill}, better"}
        )
        self.model = ScriptedChatModel(self._answer)
        self.reflection = Reflection(model=self.model, prompts=Prompts())
        options = {"eta_low": 0.3, "eta_high": 0.9, "update_interval": 10, **thresholds}
        self.evolution = Evolution(**options)
        self.step = 0

    def _answer(self, request: ChatRequest) -> str:
        if request.purpose is Purpose.GENERATION:
            return json.dumps({"pairs": self.new})
        return self.refine(request)

    def rollout(
        self, verdicts: dict[int, Outcome], *, reward: float = 0.0, finding: str = "b"
    ) -> None:
        task = Task(id="t", instruction="i", path=Path("x"), tests=Path("x"), tags=("sum",))
        trajectory = Trajectory(
            task_id="t",
            rollout=0,
            turns=(),
            finish_reason=FinishReason.SUBMITTED,
            task_reward=reward,
            skills=self.pool.active_skills(),
        )
        review = Review(
            judged_pair_ids=tuple(verdicts),
            verdicts=tuple(
                Verdict(pair_id=i, outcome=o, reason="r") for i, o in sorted(verdicts.items())
            ),
            diagnostics=(Diagnostic(kind="gap", behaviour=finding),) if finding else (),
        )
        self.buffer.observe(self.step, task, trajectory, review)
        self.pool.observe("t", review.verdicts)

    def update(self, *new: dict, **options: bool) -> EvolutionReport:
        self.new = list(new)
        self.step += 10
        self.model.requests.clear()
        return asyncio.run(
            self.evolution.update(
                self.step, self.pool, self.buffer, self.reflection, random.Random(0), **options
            )
        )

    @property
    def purposes(self) -> list[str]:
        return [request.purpose.value for request in self.model.requests]


def types(report: EvolutionReport) -> list[str]:
    return [event["type"] for event in report.events]


def test_first_pairs_come_from_initial_diagnostics_and_are_hidden() -> None:
    world = World()
    world.rollout({}, finding="no read-back")
    world.rollout({}, finding="reads the spec")
    report = world.update(proposal("a", issue_records=[1], contrast_records=[2]), proposal("b"))
    assert world.purposes == ["generation"]
    assert types(report) == ["generation", "created", "created"]
    assert report.events[1]["evidence"] == {
        "issues": [{"task_id": "t", "iteration": 0, "rollout": 0}],
        "contrasts": [{"task_id": "t", "iteration": 0, "rollout": 0}],
    }
    assert report.events[0]["prompt"] == Prompts().sha256(Purpose.GENERATION)
    assert (report.num_pairs, report.num_active_skills, world.pool.active_skills()) == (2, 0, ())
    assert len(world.buffer) == 0


def test_whole_cycle_activate_refine_hide_retire() -> None:
    world = World()
    world.rollout({})
    world.update(proposal("a"))
    world.rollout({1: FAIL})
    assert types(world.update()) == ["activated", "generation"]
    world.rollout({1: FAIL}, reward=1.0)
    world.rollout({1: FAIL})
    report = world.update()
    assert types(report) == ["refined", "generation"]
    assert sorted(world.purposes) == ["generation", "refinement"]
    assert report.events[0]["num_records"] == 2
    assert world.pool.active_skills()[0].text == "do a, better"
    world.rollout({1: FAIL})
    world.rollout({1: PASS})
    assert types(world.update()) == ["hidden", "generation"]
    world.rollout({1: PASS})
    report = world.update()
    assert types(report) == ["retired", "generation"]
    assert (report.metrics["pool/size"], report.metrics["pool/retired"]) == (0.0, 1.0)


def test_refinement_sees_failures_outcome_and_context_and_generation_does_not() -> None:
    world = World()
    world.rollout({})
    world.update(proposal("a"))
    world.rollout({1: FAIL})
    world.update()
    world.rollout({1: FAIL}, reward=1.0)
    world.rollout({1: FAIL})
    world.rollout({1: PASS}, finding="other")
    world.rollout({1: FAIL}, finding="")
    world.update(proposal("b"))
    by_purpose = {request.purpose: request.payload for request in world.model.requests}
    refinement = by_purpose[Purpose.REFINEMENT]
    assert [failure.is_success for failure in refinement.failures] == [False, False, True]
    assert (refinement.skill, refinement.revision) == ("do a", 0)
    assert len(refinement.context) == 3
    generation = by_purpose[Purpose.GENERATION]
    assert generation.records == refinement.context
    assert [rubric.title for rubric in generation.pool] == ["a"]
    assert generation.metadata.task_types == (("sum", 4),)
    status = generation.metadata.pairs[0]
    assert (status.state, status.num_passes, status.num_applicable) == ("active", 1, 4)


def test_the_pool_before_retirement_is_shown_and_blocks_duplicates() -> None:
    world = World()
    world.rollout({})
    world.update(proposal("a"))
    world.rollout({1: PASS})
    report = world.update(proposal("A"), proposal("new"))
    assert [rubric.title for rubric in world.model.requests[0].payload.pool] == ["a"]
    assert types(report) == ["retired", "generation", "rejected", "created"]
    assert report.counts["rejected/duplicate_title"] == 1
    assert [pair.id for pair in world.pool.pairs] == [2]


def test_no_generation_call_without_room_or_without_a_record() -> None:
    world = World(max_pairs=1)
    assert (types(world.update()), world.purposes) == ([], [])
    world.rollout({}, finding="")
    assert (types(world.update()), world.purposes) == ([], [])
    world.rollout({})
    world.update(proposal("a"))
    world.rollout({1: FAIL})
    assert (types(world.update(proposal("b"))), world.purposes) == (["activated"], [])
    world.rollout({1: PASS})
    assert types(world.update(proposal("b"))) == ["retired", "generation", "created"]
    assert world.model.requests[0].payload.max_pairs == 1


@pytest.mark.parametrize("answer", ["I will not.", "", '{"pairs": 3}', "[[["])
def test_a_failed_reflection_adds_nothing_and_the_rest_happens(answer: str) -> None:
    world = World()
    world.rollout({})
    world.update(proposal("low"), proposal("active"), proposal("high"), proposal("quiet"))
    world.rollout({2: FAIL})
    world.update()
    world.rollout({1: FAIL, 2: FAIL, 3: PASS})
    world.model._answer = lambda request: answer
    report = world.update()
    assert types(report) == ["activated", "kept", "retired", "kept", "generation"]
    assert "ReflectionError" in report.events[1]["reason"]
    assert report.events[3]["reason"] == "no_applicable_verdict"
    assert "ReflectionError" in report.events[4]["error"]
    assert report.metrics["pool/failed_generations"] == 1.0
    assert [(p.id, p.is_active, p.skill.revision) for p in world.pool.pairs] == [
        (1, True, 0),
        (2, True, 0),
        (4, False, 0),
    ]


def test_an_unreachable_reflection_model_is_harmless() -> None:
    def outage(request: ChatRequest) -> str:
        raise JudgeError("HTTP 503")

    world = World()
    world.rollout({})
    world.model._answer = outage
    report = world.update()
    assert (types(report), len(world.pool)) == (["generation"], 0)
    assert "HTTP 503" in report.events[0]["error"]


def test_refinement_results_come_in_pair_order_whatever_finishes_first() -> None:
    class Uneven(ScriptedChatModel):
        async def complete(self, request):
            if request.purpose is not Purpose.REFINEMENT:
                return await super().complete(request)
            pair_id = request.payload.rubric.id
            if pair_id < 3:
                await finished[pair_id + 1].wait()
            response = await super().complete(request)
            finished[pair_id].set()
            return response

    finished = {pair_id: asyncio.Event() for pair_id in (1, 2, 3)}
    world = World()
    world.rollout({})
    world.update(*(proposal(name) for name in "abc"))
    world.rollout({1: FAIL, 2: FAIL, 3: FAIL})
    world.update()
    world.rollout({1: FAIL, 2: FAIL, 3: FAIL})
    world.model = Uneven(world._answer)
    world.reflection = Reflection(model=world.model, prompts=Prompts())
    report = world.update()
    asked = [r.payload.rubric.id for r in world.model.requests if r.purpose is Purpose.REFINEMENT]
    assert asked == [3, 2, 1]
    assert [event["text"] for event in report.events[:3]] == [
        "do a, better",
        "do b, better",
        "do c, better",
    ]


def test_frozen_pool_changes_states_and_texts_only() -> None:
    world = World()
    world.rollout({})
    world.update(proposal("a"), proposal("b"), proposal("c"))
    world.rollout({1: FAIL, 2: FAIL, 3: PASS})
    assert types(world.update(proposal("d"), frozen=True)) == ["activated", "activated", "kept"]
    assert world.purposes == []
    world.rollout({1: PASS, 2: FAIL, 3: PASS})
    assert types(world.update(proposal("d"), frozen=True)) == ["hidden", "refined", "kept"]
    assert world.purposes == ["refinement"]
    assert [pair.id for pair in world.pool.pairs] == [1, 2, 3]


def test_without_injection_states_are_kept_and_nothing_is_refined() -> None:
    world = World()
    world.rollout({})
    world.update(proposal("a"), inject_skills=False)
    for _ in range(2):
        world.rollout({1: FAIL})
        report = world.update(inject_skills=False)
    assert (types(report), world.purposes) == (["kept", "generation"], ["generation"])
    assert (world.pool[1].is_active, world.pool[1].skill.revision) == (True, 0)


def test_schedule() -> None:
    evolution = World().evolution
    assert [step for step in range(41) if evolution.is_due(step)] == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta_low": 0.9}, r"rubrics.eta_low must be in \[0, rubrics.eta_high\) = \[0, 0.9\)"),
        ({"eta_low": -0.1}, "rubrics.eta_low must be in"),
        ({"eta_high": 1.1}, r"rubrics.eta_high must be in \(0, 1\], got 1.1"),
        ({"eta_high": float("nan")}, "rubrics.eta_high must be in"),
        ({"update_interval": 0}, "rubrics.update_interval must be an integer >= 1, got 0"),
    ],
)
def test_ranges(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        World(**options)
