"""The evidence buffer: who is drawn, who refines, and what is withheld."""

import dataclasses
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from arise.errors import ConfigError
from arise.llm.tokens import estimate_tokens
from arise.rubrics.diagnostics import EvidenceBuffer
from arise.rubrics.payloads import GenerationRecord
from arise.types import (
    Diagnostic,
    FinishReason,
    InjectedSkill,
    Outcome,
    Review,
    Task,
    Trajectory,
    Verdict,
)

GAP = Diagnostic(kind="gap", behaviour="no read-back", signal="step 2", covered_by=1)


def observe(
    buffer: EvidenceBuffer,
    task_id: str,
    *,
    reward: float = 0.0,
    diagnostics: tuple[Diagnostic, ...] = (GAP,),
    skills: tuple[tuple[int, int], ...] = (),
    verdicts: tuple[tuple[int, Outcome], ...] = (),
) -> None:
    task = Task(
        id=task_id,
        instruction="Do it. " * 200,
        path=Path("x"),
        tests=Path("x"),
        tags=("edit", "sum"),
    )
    trajectory = Trajectory(
        task_id=task_id,
        rollout=3,
        turns=(),
        finish_reason=FinishReason.SUBMITTED,
        task_reward=reward,
        skills=tuple(InjectedSkill(pair_id=i, revision=r, text="s") for i, r in skills),
    )
    review = Review(
        judged_pair_ids=tuple(i for i, _ in verdicts),
        verdicts=tuple(Verdict(pair_id=i, outcome=o, reason=f"why {i}") for i, o in verdicts),
        diagnostics=diagnostics,
        prompt_hash="abc",
        model="m",
    )
    buffer.observe(7, task, trajectory, review)


def test_generation_sees_no_outcome_and_no_trace() -> None:
    buffer = EvidenceBuffer(max_records=256)
    observe(buffer, "t1", skills=((1, 2), (5, 0)), verdicts=((1, Outcome.FAIL),))
    observe(buffer, "t2", diagnostics=())
    (record,) = buffer.draw(random.Random(0))
    names = {field.name for field in dataclasses.fields(record)}
    assert names == {
        "number",
        "iteration",
        "task_id",
        "rollout",
        "task_types",
        "instruction",
        "diagnostics",
        "skills",
    }
    assert [(u.pair_id, u.revision, u.verdict) for u in record.skills] == [
        (1, 2, "fail"),
        (5, 0, "invalid"),
    ]
    assert (record.number, record.task_types, record.diagnostics) == (1, ("edit", "sum"), (GAP,))
    assert len(record.instruction) == 400


@pytest.mark.parametrize("make_rng", [random.Random, np.random.default_rng])
def test_draw_is_uniform_without_replacement_and_blind_to_the_outcome(make_rng) -> None:
    buffer = EvidenceBuffer(max_records=10)
    for index in range(40):
        observe(buffer, f"t{index:02}", reward=float(index % 4 == 0))
    rng = make_rng(11)
    hits: Counter[str] = Counter()
    for _ in range(2000):
        drawn = [record.task_id for record in buffer.draw(rng)]
        assert (len(set(drawn)), drawn) == (10, sorted(drawn))
        hits.update(drawn)
    # Binomial(2000, 1/4): mean 500, standard deviation 19.4; 40 tasks within 4.5 of them.
    assert all(abs(hits[f"t{index:02}"] - 500) < 88 for index in range(40))


def test_draw_leaves_the_generator_alone_if_all_fit() -> None:
    buffer = EvidenceBuffer(max_records=2)
    observe(buffer, "t1")
    observe(buffer, "t2")
    rng = random.Random(1)
    before = rng.getstate()
    assert [record.number for record in buffer.draw(rng)] == [1, 2]
    assert rng.getstate() == before


def test_failures_need_this_revision_and_a_fail_verdict_failed_tasks_first() -> None:
    buffer = EvidenceBuffer(max_records=3)
    fail, passed = ((1, Outcome.FAIL),), ((1, Outcome.PASS),)
    observe(buffer, "solved", reward=1.0, skills=((1, 2),), verdicts=fail)
    observe(buffer, "old text", skills=((1, 1),), verdicts=fail)
    observe(buffer, "not shown", verdicts=fail)
    observe(buffer, "passed", skills=((1, 2),), verdicts=passed)
    observe(buffer, "invalid", skills=((1, 2),))
    observe(buffer, "n/a", skills=((1, 2),), verdicts=((1, Outcome.NOT_APPLICABLE),))
    observe(buffer, "unsolved 1", skills=((1, 2),), verdicts=fail)
    observe(buffer, "unsolved 2", skills=((1, 2),), verdicts=fail, diagnostics=())
    seen = buffer.failures(1, 2)
    assert [(f.record.task_id, f.is_success, f.reason) for f in seen] == [
        ("unsolved 1", False, "why 1"),
        ("unsolved 2", False, "why 1"),
        ("solved", True, "why 1"),
    ]
    observe(buffer, "unsolved 3", skills=((1, 2),), verdicts=fail)
    assert [f.record.task_id for f in buffer.failures(1, 2)] == [
        "unsolved 1",
        "unsolved 2",
        "unsolved 3",
    ]
    assert buffer.failures(2, 0) == ()


def test_window_numbers_restart_and_state() -> None:
    buffer = EvidenceBuffer(max_records=256)
    observe(buffer, "t1", skills=((1, 0),), verdicts=((1, Outcome.FAIL), (2, Outcome.PASS)))
    observe(buffer, "t1")
    assert (len(buffer), buffer.num_tasks()) == (2, 1)
    assert buffer.num_trajectories_by_tag() == (("edit", 2), ("sum", 2))
    state = buffer.state_dict()
    json.dumps(state)
    other = EvidenceBuffer(max_records=256)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.records == buffer.records
    assert (other.records[0].prompt_hash, other.records[0].model) == ("abc", "m")
    buffer.restart()
    assert (len(buffer), buffer.draw(random.Random(0))) == (0, ())


def test_texts_are_shortened_to_the_budget_signals_first_and_no_finding_goes() -> None:
    findings = tuple(
        Diagnostic(kind="gap", behaviour=f"b{n} " * 60, signal="s" * 2000, covered_by=n)
        for n in range(3)
    )
    full, small = (EvidenceBuffer(max_records=9, budget_tokens=b) for b in (None, 1500))
    for buffer in (full, small):
        for task_id in ("t1", "t2"):
            observe(
                buffer,
                task_id,
                diagnostics=findings,
                skills=((1, 0),),
                verdicts=((1, Outcome.FAIL),),
            )
    rng = random.Random(0)
    before, after = full.draw(rng), small.draw(rng)
    assert sum(size(record) for record in before) > 4000
    assert 1300 < sum(size(record) for record in after) <= 1500
    for long, short in zip(before, after, strict=True):
        assert (long.number, long.task_id, len(long.diagnostics)) == (
            short.number,
            short.task_id,
            len(short.diagnostics),
        )
        for one, other in zip(long.diagnostics, short.diagnostics, strict=True):
            assert (one.kind, one.behaviour, one.covered_by) == (
                other.kind,
                other.behaviour,
                other.covered_by,
            )
            assert "characters left out" in other.signal
    shown = small.failures(1, 0)
    assert sum(size(failure.record) for failure in shown) <= 1500
    assert [failure.reason for failure in shown] == ["why 1", "why 1"]


def size(record: GenerationRecord) -> int:
    texts = [record.instruction]
    texts += [text for entry in record.diagnostics for text in (entry.behaviour, entry.signal)]
    return sum(map(estimate_tokens, texts))


def test_limit_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"rubrics.evidence_budget_tokens must be .* got 0"):
        EvidenceBuffer(max_records=1, budget_tokens=0)
    with pytest.raises(ConfigError, match=r"rubrics.max_records must be an integer >= 1, got 0"):
        EvidenceBuffer(max_records=0)
