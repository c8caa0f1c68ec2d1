"""Behaviour after retirement and all-fail groups: scripted policies, a real agent loop."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from arise.agents.orchestrator import Orchestrator
from arise.errors import ConfigError, JudgeError
from arise.evaluation.all_fail import all_fail_rate, share_of_all_fail
from arise.evaluation.retention import RetiredRubric, behaviour_rate, retired_rubrics
from arise.inference.base import SamplingParams
from arise.llm.chat import ChatRequest
from arise.llm.scripted import ScriptedChatModel
from arise.rubrics.events import read_events
from arise.rubrics.judge import Judge, JudgeOptions
from arise.rubrics.pool_file import pool_file
from arise.rubrics.prompting import Prompts
from arise.types import FailureKind, InjectedSkill, RolloutFailure, Task, TrajectoryGroup
from folder_machines import FolderMachines
from shell_agent import make_orchestrator, scripted_engine

RETIRED = retired_rubrics(
    read_events(pool_file("arise.tasks.shellworld:pools/recorded.jsonl"), key="rubrics.pool_path")
)


def orchestrator(
    script: Callable[[tuple[int, int]], Sequence[str]], folder: Path
) -> tuple[Orchestrator, list[Task]]:
    """Two tasks that are solved by `touch done`."""
    tasks = []
    for name in ("a", "b"):
        tests = folder / "tasks" / name / "tests"
        tests.mkdir(parents=True)
        (tests / "test.sh").write_text(
            "[ -f done ] && echo 1 > reward.txt || echo 0 > reward.txt\n"
        )
        tasks.append(Task(id=name, instruction="Do it.", path=tests.parent, tests=tests))
    machines = FolderMachines(folder / "machines")
    return make_orchestrator(scripted_engine(script), machines), tasks


def test_retirements_of_a_recorded_life_cycle() -> None:
    """p̂ at retirement is passes over applicable verdicts of that window, at or above η_high."""
    assert len(RETIRED) >= 1
    for retired in RETIRED:
        assert isinstance(retired, RetiredRubric)
        assert retired.percent == 100 * retired.num_passes / retired.num_applicable >= 90
        assert retired.task_ids


def test_a_rubric_is_judged_on_its_tasks_without_skills(tmp_path: Path) -> None:
    """Task a passes, b fails once and gets no verdict once: 2 of 3, one lost."""
    verdicts = iter(("pass", "pass", "fail", None))

    def answer(request: ChatRequest) -> str:
        assert [rubric.id for rubric in request.payload.rubrics] == [RETIRED[0].pair.id]
        assert "Skills:" not in str(request.messages)
        verdict = next(verdicts)
        if verdict is None:
            raise JudgeError("away")
        return f'{{"id": {RETIRED[0].pair.id}, "reason": "r", "verdict": "{verdict}"}}'

    judge = Judge(
        model=ScriptedChatModel(answer),
        prompts=Prompts(),
        options=JudgeOptions(max_concurrency=1, rubrics_per_request=None, trace_budget_tokens=1000),
    )
    player, tasks = orchestrator(lambda session: ["submit"], tmp_path)
    rate = asyncio.run(
        behaviour_rate(
            player,
            judge,
            RETIRED[0].pair,
            tasks,
            rollouts_per_task=2,
            sampling=SamplingParams(),
        )
    )
    assert (rate.num_passes, rate.num_applicable, rate.num_lost) == (2, 3, 1)
    assert rate.percent == pytest.approx(200 / 3)


def test_all_fail_counts_each_task_once_and_shows_the_skills(tmp_path: Path) -> None:
    """Task a: rollout 1 of 3 solves it. Task b: none does."""

    def script(session: tuple[int, int]) -> list[str]:
        return ["touch done", "submit"] if session == (0, 1) else ["submit"]

    player, tasks = orchestrator(script, tmp_path)
    skill = InjectedSkill(pair_id=1, revision=0, text="Touch it.")
    rate = asyncio.run(
        all_fail_rate(
            player, tasks, rollouts_per_task=3, sampling=SamplingParams(), skills=(skill,)
        )
    )
    assert rate == 50.0


def test_groups_that_infrastructure_took_are_left_out() -> None:
    task = Task(id="t", instruction="", path=Path("t"), tests=Path("t"))
    lost = RolloutFailure(task_id="t", rollout=0, kind=FailureKind.SANDBOX, message="died")
    assert share_of_all_fail([TrajectoryGroup(task=task, slots=(lost,))]) is None


def test_a_damaged_event_is_refused() -> None:
    event = {"type": "retired", "step": 5, "num_passes": 9, "num_applicable": 10, "task_ids": []}
    with pytest.raises(ConfigError, match=r"pool\.jsonl"):
        retired_rubrics([{**event, "pair": {"id": 1}}])
