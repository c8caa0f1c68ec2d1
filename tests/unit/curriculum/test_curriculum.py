"""The whole curriculum with the real pool, buffer and life cycle; only the models are scripted."""

import asyncio
import copy
import io
import json
import logging
from pathlib import Path

import pytest
import torch

from arise.curriculum.curriculum import Curriculum, RubricParts
from arise.curriculum.factory import make_sampler
from arise.errors import ConfigError
from arise.llm.chat import ChatRequest, Purpose
from arise.llm.scripted import ScriptedChatModel
from arise.rubrics.diagnostics import EvidenceBuffer
from arise.rubrics.evolution import Evolution
from arise.rubrics.pair import Rubric, RubricSkillPair, Skill, SkillState
from arise.rubrics.pool import RubricPool
from arise.rubrics.prompting import Prompts
from arise.rubrics.reflection import Reflection
from arise.types import (
    Capability,
    Diagnostic,
    FailureKind,
    FinishReason,
    Iteration,
    Outcome,
    Review,
    RolloutFailure,
    Task,
    Trajectory,
    TrajectoryGroup,
    Verdict,
)

G = 4
TASKS = [
    Task(
        id=f"t{i:02d}",
        instruction=f"Do {i}.",
        path=Path(),
        tests=Path(),
        tags=(f"d{i % 3}", f"e{i % 2}"),
    )
    for i in range(12)
]


def answer(request: ChatRequest) -> str:
    """Proposes two pairs named after the update, and a new skill text."""
    step = request.payload.metadata.step
    if request.purpose is Purpose.REFINEMENT:
        return json.dumps({"skill": f"Text of step {step}."})
    return json.dumps(
        {
            "pairs": [
                {
                    "title": f"Requirement {step}-{number}",
                    "capability": capability,
                    "applicability": "Always.",
                    "fail_condition": "It is not seen.",
                    "pass_condition": "It is seen.",
                    "skill": f"Do it as in {step}-{number}.",
                    "issue_records": [1],
                    "contrast_records": [1],
                }
                for number, capability in enumerate(("execution", "debugging"))
            ]
        }
    )


def make_pair(pair_id: int, state: SkillState = SkillState.HIDDEN) -> RubricSkillPair:
    return RubricSkillPair(
        id=pair_id,
        title=f"Pair {pair_id}",
        capability=Capability.EXECUTION,
        rubric=Rubric(applicability="a", fail_condition="f", pass_condition="p"),
        skill=Skill(text="Look twice.", state=state),
        created_at=0,
    )


def make_curriculum(
    *,
    sampler: str = "capability",
    seed: int = 0,
    tasks: list[Task] = TASKS,
    pairs: tuple[RubricSkillPair, ...] = (),
    has_rubrics: bool = True,
    inject_skills: bool = True,
    update_interval: int = 3,
    reply=answer,
) -> Curriculum:
    rubrics = None
    if has_rubrics:
        pool = RubricPool(max_pairs=64, max_new_pairs=8, max_text_chars=4000)
        rubrics = RubricParts(
            imported=tuple(pool.import_pairs(pairs)),
            pool=pool,
            buffer=EvidenceBuffer(max_records=5),
            evolution=Evolution(eta_low=0.3, eta_high=0.9, update_interval=update_interval),
            reflection=Reflection(model=ScriptedChatModel(reply), prompts=Prompts()),
            inject_skills=inject_skills,
        )
    return Curriculum(
        sampler=make_sampler(
            sampler,
            tasks=tasks,
            seed=seed,
            min_discovery_probability=0.1,
            pair_quota=0.25,
            gamma_obs=0.2,
            gamma_unobs=0.999,
            quarantine_after=3,
        ),
        tasks_per_step=4,
        seed=seed,
        rubrics=rubrics,
    )


def verdict_for(index: int, task_id: str, rollout: int, pair_id: int) -> Outcome:
    """Odd pairs nearly always fail, even ones nearly always pass; every fifth does not apply."""
    number = index * 7 + int(task_id[1:]) * 3 + rollout * 5 + pair_id * 11
    if number % 5 == 0:
        return Outcome.NOT_APPLICABLE
    return Outcome.PASS if number % 13 < (1 if pair_id % 2 else 12) else Outcome.FAIL


def roll_out(curriculum: Curriculum, iteration: Iteration, *, lose: tuple[str, ...] = ()) -> None:
    """Fill groups and reviews; the last rollout of the tasks in `lose` dies."""
    for sample in iteration.samples:
        slots: list[Trajectory | RolloutFailure] = []
        reviews: list[Review | None] = []
        for j in range(G):
            if j == G - 1 and sample.task.id in lose:
                slots.append(
                    RolloutFailure(
                        task_id=sample.task.id, rollout=j, kind=FailureKind.SANDBOX, message="died"
                    )
                )
                reviews.append(None)
                continue
            slots.append(
                Trajectory(
                    task_id=sample.task.id,
                    rollout=j,
                    turns=(),
                    finish_reason=FinishReason.SUBMITTED,
                    task_reward=float((iteration.index + j) % 2),
                    skills=iteration.skills,
                )
            )
            ids = tuple(pair.id for pair in curriculum.pairs)
            reviews.append(
                Review(
                    judged_pair_ids=ids,
                    verdicts=tuple(
                        Verdict(
                            pair_id=i, outcome=verdict_for(iteration.index, sample.task.id, j, i)
                        )
                        for i in ids
                    ),
                    diagnostics=(Diagnostic(kind="gap", behaviour="does not look", signal="ls"),),
                )
            )
        iteration.groups.append(TrajectoryGroup(task=sample.task, slots=tuple(slots)))
        iteration.reviews.append(reviews)


def step(curriculum: Curriculum, index: int) -> list[tuple]:
    """One iteration from draw to evolution; what it drew and showed."""
    iteration = curriculum.draw(index)
    drawn = [(s.task.id, s.reason, s.tag, s.capability) for s in iteration.samples]
    roll_out(curriculum, iteration, lose=("t05",))
    curriculum.observe(iteration)
    asyncio.run(curriculum.evolve(index + 1))
    return [*drawn, iteration.skills, iteration.metrics, curriculum.metrics()]


def reload(state: dict) -> dict:
    """Through the strict loader that a checkpoint goes through."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("sampler", ["capability", "uniform", "vade"])
def test_S01_resume_at_every_boundary_is_exact(sampler):
    unbroken = make_curriculum(sampler=sampler)
    story, states = [], []
    for index in range(12):
        states.append(reload(unbroken.state_dict()))
        story.append(step(unbroken, index))
    events = unbroken.pop_events()
    assert {"created", "activated", "refined", "retired"} <= {event["type"] for event in events}
    for start in (1, 4, 5, 8, 11):
        resumed = make_curriculum(sampler=sampler, seed=99)
        resumed.load_state_dict(states[start])
        assert [step(resumed, index) for index in range(start, 12)] == story[start:]
        assert resumed.state_dict() == unbroken.state_dict()
        assert resumed.pop_events() == [event for event in events if event["step"] > start]


def test_state_is_the_one_before_the_draw_until_the_iteration_is_observed():
    curriculum = make_curriculum()
    step(curriculum, 0)
    before = copy.deepcopy(curriculum.state_dict())
    iteration = curriculum.draw(1)
    roll_out(curriculum, iteration)
    assert curriculum.state_dict() == before
    resumed = make_curriculum(seed=5)
    resumed.load_state_dict(reload(curriculum.state_dict()))
    assert resumed.draw(1).samples == iteration.samples
    assert curriculum.draw(1).samples == iteration.samples, "an unobserved draw is undone"
    roll_out(curriculum, iteration := curriculum.draw(1))
    curriculum.observe(iteration)
    assert curriculum.state_dict() != before


def test_windows_count_incomplete_groups_but_the_sampler_does_not():
    curriculum = make_curriculum(pairs=(make_pair(3),))
    iteration = curriculum.draw(0)
    task = iteration.samples[0].task
    iteration.samples = iteration.samples[:1]
    roll_out(curriculum, iteration, lose=(task.id,))
    curriculum.observe(iteration)
    state = curriculum.state_dict()
    outcomes = [verdict_for(0, task.id, j, 3) for j in range(G - 1)]
    num_applicable = sum(outcome is not Outcome.NOT_APPLICABLE for outcome in outcomes)
    assert state["pool"]["windows"][3] == (outcomes.count(Outcome.PASS), num_applicable)
    assert state["pool"]["window_task_ids"] == (task.id,)
    assert len(state["buffer"]["records"]) == G - 1
    sampler = state["sampler"]
    assert sampler["ledger"]["num_failures"] == {task.id: 1}
    assert sampler["ledger"]["num_evaluations"] == {}
    assert sampler["coverage"]["tasks_of"] == {3: set()}
    assert sampler["evidence"]["accumulators"] == {3: {}}
    assert sampler["version"] == 1


def test_complete_groups_are_stamped_with_the_version_after_the_update():
    curriculum = make_curriculum(pairs=(make_pair(3),))
    iteration = curriculum.draw(6)
    roll_out(curriculum, iteration)
    curriculum.observe(iteration)
    accumulators = curriculum.state_dict()["sampler"]["evidence"]["accumulators"][3]
    assert {version for _, _, version in accumulators.values()} == {7}
    ledger = curriculum.state_dict()["sampler"]["ledger"]
    assert ledger["num_evaluations"] == {task.id: 1 for task in iteration.tasks}


def test_retired_pairs_leave_the_sampler_and_new_ones_enter_it():
    def passes(curriculum: Curriculum, index: int) -> None:
        iteration = curriculum.draw(index)
        roll_out(curriculum, iteration)
        iteration.reviews = [
            [
                Review(
                    judged_pair_ids=(3,),
                    verdicts=(Verdict(pair_id=3, outcome=Outcome.PASS),),
                    diagnostics=(Diagnostic(kind="gap", behaviour="b"),),
                )
                for _ in row
            ]
            for row in iteration.reviews
        ]
        curriculum.observe(iteration)
        assert iteration.metrics == {"rubric/mean_reward": 1.0, "rubric/pass_rate_execution": 1.0}

    curriculum = make_curriculum(pairs=(make_pair(3),), update_interval=1)
    passes(curriculum, 0)
    assert curriculum.metrics()["sampler/coverage"] == 4 / 12
    report = asyncio.run(curriculum.evolve(1))
    assert report is not None
    assert report.counts["retired"] == 1
    assert curriculum.live_pair_ids == {4, 5}
    sampler = curriculum.state_dict()["sampler"]
    assert sampler["capabilities"] == {4: "execution", 5: "debugging"}
    assert sampler["coverage"]["tasks_of"] == sampler["records"]["tasks_of"] == {4: set(), 5: set()}
    assert curriculum.metrics()["sampler/discovery_probability"] == 1.0
    assert curriculum.metrics()["pool/size"] == 2.0


def test_nothing_is_due_between_updates():
    curriculum = make_curriculum(update_interval=3)
    assert asyncio.run(curriculum.evolve(2)) is None
    assert asyncio.run(make_curriculum(has_rubrics=False).evolve(3)) is None


@pytest.mark.parametrize(("inject", "num_skills"), [(True, 1), (False, 0)])
def test_active_skills_are_injected_unless_switched_off(inject, num_skills):
    pairs = (make_pair(3, SkillState.ACTIVE), make_pair(4))
    curriculum = make_curriculum(pairs=pairs, inject_skills=inject)
    skills = curriculum.draw(0).skills
    assert [skill.pair_id for skill in skills] == [3][:num_skills]
    assert curriculum.metrics()["pool/active_skills"] == 1.0


def test_outcome_only_training_has_no_rubric_work():
    curriculum = make_curriculum(sampler="uniform", has_rubrics=False)
    iteration = curriculum.draw(0)
    assert (iteration.skills, curriculum.pairs, curriculum.live_pair_ids) == ((), (), frozenset())
    roll_out(curriculum, iteration)
    iteration.reviews = []
    curriculum.observe(iteration)
    state = curriculum.state_dict()
    assert (state["pool"], state["buffer"]) == (None, None)
    assert state["sampler"]["ledger"]["num_evaluations"] == {}
    assert iteration.metrics == {}
    assert set(curriculum.metrics()) == {"sampler/num_quarantined", "sampler/draw_entropy"}
    with pytest.raises(ConfigError, match=r"without a rubric pool, this run is with one.*rubrics"):
        make_curriculum(sampler="uniform").load_state_dict(state)


def test_import_events_are_told_once_and_not_again_after_a_resume():
    curriculum = make_curriculum(pairs=(make_pair(3),))
    assert [event["type"] for event in curriculum.pop_events()] == ["imported"]
    assert curriculum.pop_events() == []
    resumed = make_curriculum(pairs=(make_pair(3),))
    resumed.load_state_dict(curriculum.state_dict())
    assert resumed.pop_events() == []


def test_an_interrupted_update_changes_nothing():
    def interrupt(request: ChatRequest) -> str:
        raise KeyboardInterrupt

    curriculum = make_curriculum(update_interval=2, reply=interrupt)
    for index in range(2):
        iteration = curriculum.draw(index)
        roll_out(curriculum, iteration)
        curriculum.observe(iteration)
    before = copy.deepcopy(curriculum.state_dict())
    assert len(before["buffer"]["records"]) > 5, "more than max_records, so that it draws"
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(curriculum.evolve(2))
    assert curriculum.state_dict() == before
    assert curriculum.pop_events() == []


def test_a_changed_task_list_warns_and_goes_on(caplog):
    curriculum = make_curriculum()
    for index in range(4):
        step(curriculum, index)
    new = Task(id="t99", instruction="", path=Path(), tests=Path(), tags=("d0",))
    resumed = make_curriculum(tasks=[*TASKS[3:], new])
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(reload(curriculum.state_dict()))
    assert "another one than in the saved state (12 tasks then, 10 now)" in caplog.text
    ids = {s.task.id for index in range(4, 9) for s in resumed.draw(index).samples}
    assert ids <= {task.id for task in [*TASKS[3:], new]}
    counts = curriculum.state_dict()["sampler"]["ledger"]["num_evaluations"]
    assert resumed.state_dict()["sampler"]["ledger"]["num_evaluations"] == counts


def test_quarantined_tasks_are_listed_and_in_flight_ones_left_out():
    curriculum = make_curriculum(tasks=TASKS[:4])
    for index in range(3):
        iteration = curriculum.draw(index)
        roll_out(curriculum, iteration, lose=("t02",))
        curriculum.observe(iteration)
    assert curriculum.quarantined == ("t02",)
    assert {t.id for t in curriculum.draw(3, exclude=["t00"]).tasks} == {"t01", "t03"}


def test_wrong_settings_name_their_key():
    with pytest.raises(ConfigError, match=r"rollout\.tasks_per_step must be at least 1, got 0"):
        Curriculum(sampler=None, tasks_per_step=0, seed=0)
    with pytest.raises(ConfigError, match="'thompson'; allowed are capability, uniform and vade"):
        make_curriculum(sampler="thompson")
