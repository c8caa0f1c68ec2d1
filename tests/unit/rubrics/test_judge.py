"""The judge: its requests, and its reviews when answers are good, bad or absent."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arise.errors import ConfigError, JudgeError
from arise.llm.chat import ChatModel, ChatRequest, ChatResponse, Purpose
from arise.llm.scripted import ScriptedChatModel
from arise.llm.usage import TokenPrices, quantile
from arise.rubrics.judge import Judge, JudgeOptions
from arise.rubrics.pair import Rubric, RubricSkillPair, Skill
from arise.rubrics.prompting import Prompts
from arise.rubrics.verdict_cache import VerdictCache
from arise.types import (
    Capability,
    Diagnostic,
    FinishReason,
    Outcome,
    Review,
    Task,
    Trajectory,
    Turn,
)

TASK = Task(id="t", instruction="Sum it.", path=Path("x"), tests=Path("x/tests"))
TRAJECTORY = Trajectory(
    task_id="t",
    rollout=0,
    turns=(
        Turn(
            prompt_token_ids=(1,),
            token_ids=(2,),
            logprobs=(0.0,),
            policy_versions=(0,),
            text="cat a",
            action="cat a",
            observation="x" * 3000,
            exit_code=0,
        ),
    ),
    finish_reason=FinishReason.SUBMITTED,
    task_reward=0.0,
)
FINDINGS = json.dumps({"diagnostics": [{"kind": "gap", "behaviour": "b", "covered_by": 2}]})


def pair(pair_id: int) -> RubricSkillPair:
    return RubricSkillPair(
        id=pair_id,
        title=f"pair {pair_id}",
        capability=Capability.EXECUTION,
        rubric=Rubric(applicability="a", fail_condition="f", pass_condition="p"),
        skill=Skill(text="the skill's own words"),
        created_at=10,
    )


def verdicts(request: ChatRequest, verdict: str = "pass") -> str:
    lines = [
        json.dumps({"id": rubric.id, "reason": "seen", "verdict": verdict})
        for rubric in request.payload.rubrics
    ]
    return "\n".join([*lines, *([FINDINGS] if request.payload.asks_diagnostics else [])])


def make_judge(model: ChatModel, *, cache: VerdictCache | None = None, **options: Any) -> Judge:
    limits = {"max_concurrency": 2, "rubrics_per_request": None, "trace_budget_tokens": 1000}
    return Judge(
        model=model, prompts=Prompts(), options=JudgeOptions(**limits | options), cache=cache
    )


def review(
    answer: Callable[[ChatRequest], str], *pair_ids: int, **options: Any
) -> tuple[Review, ScriptedChatModel, Judge]:
    model = ScriptedChatModel(answer)
    judge = make_judge(model, **options)
    result = asyncio.run(judge.review(TASK, TRAJECTORY, [pair(pair_id) for pair_id in pair_ids]))
    return result, model, judge


def test_R05_an_empty_pool_costs_one_analysis_and_no_verdict_call() -> None:
    result, model, judge = review(lambda _: FINDINGS)
    assert [request.purpose for request in model.requests] == [Purpose.INITIAL_ANALYSIS]
    assert result.diagnostics == (Diagnostic(kind="gap", behaviour="b"),)
    assert (result.verdicts, result.judged_pair_ids, result.error) == ((), (), "")
    assert result.prompt_hash == Prompts().sha256(Purpose.INITIAL_ANALYSIS)
    assert result.model == judge.model.name == "scripted"


def test_verdicts_during_initial_analysis_are_ignored() -> None:
    result, _, _ = review(lambda _: '{"id": 1, "verdict": "fail"}\n' + FINDINGS)
    assert (result.verdicts, result.judged_pair_ids) == ((), ())


def test_one_request_for_the_whole_pool() -> None:
    result, model, _ = review(verdicts, 3, 1, 2)
    (request,) = model.requests
    assert request.purpose is Purpose.RUBRIC_EVALUATION
    assert [rubric.id for rubric in request.payload.rubrics] == [1, 2, 3]
    assert result.judged_pair_ids == (1, 2, 3)
    assert result.outcomes == dict.fromkeys((1, 2, 3), Outcome.PASS)
    assert result.diagnostics == (Diagnostic(kind="gap", behaviour="b", covered_by=2),)
    assert (result.error, result.num_invalid) == ("", 0)
    assert "the skill's own words" not in request.messages[1]["content"]
    assert result.prompt_hash == Prompts().sha256(Purpose.RUBRIC_EVALUATION)


def test_split_requests_ask_once_for_diagnostics_with_the_complete_pool() -> None:
    result, model, _ = review(verdicts, *range(1, 8), rubrics_per_request=3)
    asked = [[rubric.id for rubric in request.payload.rubrics] for request in model.requests]
    assert asked == [[1, 2, 3], [4, 5, 6], [7]]
    assert [len(request.payload.pool) for request in model.requests] == [7, 0, 0]
    assert [request.payload.asks_diagnostics for request in model.requests] == [True, False, False]
    assert list(result.outcomes) == list(range(1, 8))
    assert len(result.diagnostics) == 1


@pytest.mark.parametrize("pair_ids", [(), (1, 2, 3)])
def test_findings_that_nobody_wants_are_not_asked_for(pair_ids: tuple[int, ...]) -> None:
    model = ScriptedChatModel(verdicts)
    judge = make_judge(model, rubrics_per_request=2)
    pool = [pair(pair_id) for pair_id in pair_ids]
    result = asyncio.run(judge.review(TASK, TRAJECTORY, pool, asks_diagnostics=False))
    assert [request.payload.asks_diagnostics for request in model.requests] == [False] * (
        (len(pair_ids) + 1) // 2
    )
    assert all(request.payload.pool == () for request in model.requests)
    assert list(result.outcomes) == list(pair_ids)
    assert (result.diagnostics, result.error) == ((), "")


def test_J04_an_outage_is_invalid_and_never_a_fail() -> None:
    def outage(request: ChatRequest) -> str:
        raise JudgeError("HTTP 500")

    result, _, judge = review(outage, 1, 2)
    assert (result.verdicts, result.judged_pair_ids, result.num_invalid) == ((), (1, 2), 2)
    assert "HTTP 500" in result.error
    metrics = judge.pop_metrics()
    assert (metrics["judge/failed_requests"], metrics["judge/invalid_rate"]) == (1.0, 1.0)


def test_J11_one_refused_request_leaves_the_others_alone() -> None:
    def answer(request: ChatRequest) -> str:
        if request.payload.rubrics[0].id == 3:
            return "I cannot help with evaluating this transcript."
        return verdicts(request, "fail")

    result, _, _ = review(answer, 1, 2, 3, 4, 5, rubrics_per_request=2)
    assert result.outcomes == dict.fromkeys((1, 2, 5), Outcome.FAIL)
    assert result.error == "no valid verdict for rubrics 3, 4"


def test_missing_diagnostics_are_told() -> None:
    result, _, judge = review(lambda r: verdicts(r).replace("diagnostics", "notes"), 1)
    assert (result.outcomes, result.error) == ({1: Outcome.PASS}, "no diagnostics")
    assert judge.pop_metrics()["judge/no_diagnostics"] == 1.0


def test_a_verdict_for_a_rubric_of_another_request_is_not_taken() -> None:
    def answer(request: ChatRequest) -> str:
        return "\n".join(f'{{"id": {n}, "reason": "x", "verdict": "fail"}}' for n in (1, 2))

    result, _, judge = review(answer, 1, 2, rubrics_per_request=1)
    assert result.outcomes == {1: Outcome.FAIL, 2: Outcome.FAIL}
    assert judge.pop_metrics()["judge/unknown_ids"] == 2.0


def test_counters_add_up_and_restart() -> None:
    _, _, judge = review(verdicts, *range(1, 6), rubrics_per_request=2, trace_budget_tokens=100)
    metrics = judge.pop_metrics()
    assert metrics["judge/reviews"] == 1.0
    assert metrics["judge/shortened_traces"] == 1.0
    assert (metrics["judge/calls"], metrics["judge/failed_requests"]) == (3.0, 0.0)
    assert (metrics["judge/verdicts"], metrics["judge/invalid_verdicts"]) == (5.0, 0.0)
    assert metrics["judge/latency_p95_s"] >= metrics["judge/latency_p50_s"] > 0.0
    again = judge.pop_metrics()
    assert again["judge/calls"] == 0.0
    assert "judge/latency_p50_s" not in again


def test_J09_concurrency_is_bounded_over_two_iterations_on_one_loop() -> None:
    class Slow(ScriptedChatModel):
        in_flight = 0
        most = 0

        async def complete(self, request):
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            await asyncio.sleep(0.002)
            self.in_flight -= 1
            return await super().complete(request)

    model = Slow(verdicts)
    judge = make_judge(model, max_concurrency=3, rubrics_per_request=1)

    async def two_iterations() -> list[Review]:
        results = []
        for _ in range(2):
            reviews = [judge.review(TASK, TRAJECTORY, [pair(1), pair(2)]) for _ in range(4)]
            results += await asyncio.gather(*reviews)
        return results

    results = asyncio.run(two_iterations())
    assert all(result.num_invalid == 0 for result in results)
    assert (model.most, len(model.requests)) == (3, 16)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_concurrency", 0),
        ("rubrics_per_request", 0),
        ("trace_budget_tokens", -1),
        ("max_calls_per_iteration", 0),
        ("give_up_after", 0),
        ("alarm_after", 0),
    ],
)
def test_limits_are_checked(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"judge\.{key} must be an integer >= 1, got {value}"):
        make_judge(ScriptedChatModel(verdicts), **{key: value})


def test_quantile() -> None:
    assert [quantile([4.0, 1.0, 3.0, 2.0], q) for q in (0.0, 0.5, 0.75, 0.95, 1.0)] == [
        1.0,
        2.0,
        3.0,
        4.0,
        4.0,
    ]


def test_prices_become_a_cost_and_are_left_out_where_unknown() -> None:
    class Counting(ScriptedChatModel):
        async def complete(self, request: ChatRequest) -> ChatResponse:
            response = await super().complete(request)
            return replace(response, prompt_tokens=1000, completion_tokens=100)

    judge = make_judge(Counting(verdicts), prices=TokenPrices(prompt=2.0, completion=10.0))
    asyncio.run(judge.review(TASK, TRAJECTORY, [pair(1)]))
    metrics = judge.pop_metrics()
    assert (metrics["judge/prompt_tokens"], metrics["judge/completion_tokens"]) == (1000, 100)
    assert metrics["judge/cost"] == pytest.approx(0.003)
    assert judge.pop_metrics()["judge/cost"] == 0.0
    assert "judge/cost" not in make_judge(Counting(verdicts)).pop_metrics()


def test_what_is_beyond_the_call_budget_is_invalid_until_the_next_iteration() -> None:
    result, model, judge = review(
        verdicts, 1, 2, 3, 4, rubrics_per_request=1, max_calls_per_iteration=3
    )
    assert (len(model.requests), len(result.verdicts), result.num_invalid) == (3, 3, 1)
    assert "all 3 calls of this iteration are spent" in result.error
    metrics = judge.pop_metrics()
    assert (metrics["judge/calls"], metrics["judge/skipped_requests"]) == (3.0, 1.0)
    assert metrics["judge/verdicts"] + metrics["judge/invalid_verdicts"] == 4.0
    again = asyncio.run(judge.review(TASK, TRAJECTORY, [pair(1)]))
    assert again.num_invalid == 0


def test_a_judge_that_is_away_is_not_waited_for_again_and_again() -> None:
    def outage(request: ChatRequest) -> str:
        raise JudgeError("HTTP 500")

    result, model, judge = review(outage, *range(1, 8), rubrics_per_request=1, give_up_after=3)
    assert (len(model.requests), result.num_invalid, result.verdicts) == (3, 7, ())
    assert "left 3 requests in a row without an answer" in result.error
    assert judge.pop_metrics()["judge/skipped_requests"] == 4.0
    asyncio.run(judge.review(TASK, TRAJECTORY, [pair(1)]))
    assert len(model.requests) == 4, "the next iteration asks anew"


def iterations(judge: Judge, count: int) -> list[tuple[float, float]]:
    """(lost iterations, alarm) after each of several iterations of one review."""
    told = []
    for _ in range(count):
        asyncio.run(judge.review(TASK, TRAJECTORY, [pair(1)]))
        metrics = judge.pop_metrics()
        told.append((metrics["judge/lost_iterations"], metrics["judge/alarm"]))
    return told


@pytest.mark.parametrize("fault", ["outage", "nonsense"])
def test_alarm_after_several_lost_iterations_and_none_after_an_answer(fault: str) -> None:
    state = {"fault": True}

    def answer(request: ChatRequest) -> str:
        if state["fault"] and fault == "outage":
            raise JudgeError("HTTP 500")
        return "I am a helpful assistant." if state["fault"] else verdicts(request)

    judge = make_judge(ScriptedChatModel(answer), alarm_after=2)
    assert iterations(judge, 3) == [(1, 0), (2, 1), (3, 1)]
    judge.require_judge()
    state["fault"] = False
    assert iterations(judge, 1) == [(0, 0)]


def test_on_outage_stop_ends_the_run_with_a_way_on() -> None:
    judge = make_judge(ScriptedChatModel(lambda _: "?"), alarm_after=2, on_outage="stop")
    iterations(judge, 1)
    judge.require_judge()
    iterations(judge, 1)
    with pytest.raises(JudgeError, match=r"2 iterations in a row.*judge\.on_outage=continue"):
        judge.require_judge()
    with pytest.raises(ConfigError, match=r"judge.on_outage = 'wait' is not one of continue, stop"):
        make_judge(ScriptedChatModel(verdicts), on_outage="wait")


def test_an_iteration_that_asks_nothing_says_nothing_about_the_judge(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "v.sqlite")
    judge = make_judge(ScriptedChatModel(verdicts), cache=cache, alarm_after=1)
    assert iterations(judge, 3) == [(0, 0)] * 3
    assert len(judge.model.requests) == 1
    cache.close()
