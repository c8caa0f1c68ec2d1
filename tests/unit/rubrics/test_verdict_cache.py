"""A verdict is asked for once per rubric text, trajectory, prompt and model, resumed or not."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from arise.llm.chat import ChatRequest, Purpose
from arise.llm.scripted import ScriptedChatModel
from arise.rubrics.judge import Judge, JudgeOptions
from arise.rubrics.pair import Rubric, RubricSkillPair, Skill
from arise.rubrics.prompting import BUILT_IN, Prompts
from arise.rubrics.verdict_cache import VerdictCache
from arise.types import Capability, FinishReason, Outcome, Review, Task, Trajectory, Turn

TASK = Task(id="t", instruction="Sum it.", path=Path("x"), tests=Path("x/tests"))


def trajectory(text: str = "cat a") -> Trajectory:
    turn = Turn(
        prompt_token_ids=(1,), token_ids=(2,), logprobs=(0.0,), policy_versions=(0,), text=text
    )
    return Trajectory(
        task_id="t",
        rollout=0,
        turns=(turn,),
        finish_reason=FinishReason.SUBMITTED,
        task_reward=0.0,
    )


def pair(pair_id: int, text: str = "never read back") -> RubricSkillPair:
    return RubricSkillPair(
        id=pair_id,
        title="Read back",
        capability=Capability.VERIFICATION,
        rubric=Rubric(applicability="a", fail_condition=text, pass_condition="p"),
        skill=Skill(text="s"),
        created_at=1,
    )


def answer(request: ChatRequest) -> str:
    lines = [
        {"id": rubric.id, "reason": f"says {rubric.fail_condition}", "verdict": "fail"}
        for rubric in getattr(request.payload, "rubrics", ())
    ]
    if request.purpose is Purpose.INITIAL_ANALYSIS or request.payload.asks_diagnostics:
        findings = [{"kind": "gap", "behaviour": "b", "signal": "s", "covered_by": None}]
        lines.append({"diagnostics": findings})
    return "\n".join(map(json.dumps, lines))


class Lab:
    """A judge whose cache lies in a file, as a run's does."""

    def __init__(self, path: Path, *, name: str = "m", prompts: Prompts | None = None) -> None:
        self.model = ScriptedChatModel(answer, name=name)
        self.cache = VerdictCache(path)
        self.judge = Judge(
            model=self.model,
            prompts=prompts or Prompts(),
            options=JudgeOptions(
                max_concurrency=8, rubrics_per_request=2, trace_budget_tokens=1000
            ),
            cache=self.cache,
        )

    def review(self, *pairs: RubricSkillPair, text: str = "cat a", times: int = 1) -> Review:
        async def run() -> list[Review]:
            reviews = (self.judge.review(TASK, trajectory(text), pairs) for _ in range(times))
            return list(await asyncio.gather(*reviews))

        first, *others = asyncio.run(run())
        assert all(other == first for other in others)
        return first

    def asked(self) -> list[list[int]]:
        """Rubric ids of every request since the last call."""
        requests, self.model.requests = self.model.requests, []
        return [[rubric.id for rubric in request.payload.rubrics] for request in requests]


def test_a_second_review_asks_nothing_and_says_the_same_also_in_another_process(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path / "v.sqlite")
    first = lab.review(pair(1), pair(2, "other"))
    assert lab.asked() == [[1, 2]]
    assert first.outcomes == {1: Outcome.FAIL, 2: Outcome.FAIL}
    assert first.diagnostics
    assert lab.review(pair(1), pair(2, "other")) == first
    asyncio.run(lab.judge.stop())
    again = Lab(tmp_path / "v.sqlite")
    assert again.review(pair(1), pair(2, "other")) == first
    assert (lab.asked(), again.asked()) == ([], [])
    metrics = again.judge.pop_metrics()
    assert (metrics["judge/cached_verdicts"], metrics["judge/verdicts"]) == (2.0, 2.0)
    assert (metrics["judge/calls"], metrics["judge/invalid_rate"]) == (0.0, 0.0)
    again.cache.close()


def test_equal_trajectories_of_one_iteration_are_judged_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "v.sqlite")
    lab.review(pair(1), times=6)
    assert lab.asked() == [[1]]
    metrics = lab.judge.pop_metrics()
    assert (metrics["judge/reviews"], metrics["judge/verdicts"]) == (6.0, 6.0)
    assert metrics["judge/cached_verdicts"] == 5.0
    lab.cache.close()


def test_the_key_is_rubric_text_trajectory_prompt_and_model(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    lab = Lab(path)
    lab.review(pair(1))
    lab.asked()
    # The same text under another id is known; the findings belong to the pool and are not.
    assert lab.review(pair(7)).outcomes == {7: Outcome.FAIL}
    assert lab.asked() == [[]]
    lab.review(pair(1, "another text"))
    lab.review(pair(1), text="cat b")
    assert lab.asked() == [[1], [1]]
    other = Lab(path, name="other-model")
    other.review(pair(1))
    assert other.asked() == [[1]]
    folder = tmp_path / "prompts"
    folder.mkdir()
    for file in BUILT_IN.glob("*.md"):
        (folder / file.name).write_text(file.read_text() + "\n")
    changed = Lab(path, prompts=Prompts(directory=folder))
    changed.review(pair(1))
    assert changed.asked() == [[1]]
    for own in (lab, other, changed):
        own.cache.close()


def test_a_new_rubric_is_asked_alone_with_the_complete_pool_for_findings(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "v.sqlite")
    lab.review(pair(1))
    lab.asked()
    review = lab.review(pair(1), pair(2, "new"))
    assert list(review.outcomes) == [1, 2]
    (request,) = lab.model.requests
    assert [rubric.id for rubric in request.payload.rubrics] == [2]
    assert [rubric.id for rubric in request.payload.pool] == [1, 2]
    lab.cache.close()


def test_initial_analyses_are_kept_too(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "v.sqlite")
    first = lab.review()
    assert first.diagnostics
    assert lab.review() == first
    assert len(lab.model.requests) == 1
    lab.cache.close()


def test_invalid_verdicts_are_not_kept(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "v.sqlite")
    lab.model._answer = lambda request: answer(request).replace("fail", "perhaps")
    assert lab.review(pair(1, "x")).num_invalid == 1
    lab.model._answer = answer
    assert lab.review(pair(1, "x")).outcomes == {1: Outcome.FAIL}
    lab.cache.close()


@pytest.mark.parametrize("kind", ["garbage", "folder", "read-only place"])
def test_a_file_that_cannot_be_used_costs_the_cache_and_nothing_else(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "v.sqlite"
    if kind == "garbage":
        path.write_bytes(b"no database" * 500)
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "missing" / "v.sqlite"
    caplog.set_level(logging.WARNING)
    lab = Lab(path)
    first = lab.review(pair(1))
    assert first.outcomes == {1: Outcome.FAIL}
    assert replace(lab.review(pair(1))) == first
    assert caplog.text.count("verdicts are not kept") == 1
    lab.cache.close()
