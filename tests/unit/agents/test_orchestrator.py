import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from arise.agents.orchestrator import RolloutPlan
from arise.environments.bubblewrap import BubblewrapFactory
from arise.errors import ConfigError, InferenceError, VerifierError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.types import FailureKind, FinishReason, InjectedSkill, Task, Trajectory, TrajectoryGroup
from folder_machines import FolderMachines
from shell_agent import make_orchestrator, scripted_engine

pytestmark = pytest.mark.anyio

Session = tuple[int, int]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class BatchSensitiveEngine(ScriptedEngine):
    """Its log-probabilities depend on when and beside what a call was answered.

    That is what a real engine's do, in the last bits.
    """

    num_batches = 0

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        self.num_batches += 1
        answers = await super().generate(requests)
        return [
            replace(answer, logprobs=(-self.num_batches - place / 1000,) * len(answer.logprobs))
            if isinstance(answer, Completion)
            else answer
            for place, answer in enumerate(answers)
        ]


PASSES_IF_DONE = "if [ -f done ]; then echo 1; else echo 0; fi > reward.txt\n"


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Task]:
    def make(name: str, test: str = PASSES_IF_DONE, **fields: object) -> Task:
        tests = tmp_path / "tasks" / name / "tests"
        tests.mkdir(parents=True)
        (tests / "test.sh").write_text(test)
        return Task(id=name, instruction="Do it.", path=tests.parent, tests=tests, **fields)  # type: ignore[arg-type]

    return make


def plan_of(*tasks: Task, rollouts: int = 2, skills: tuple[InjectedSkill, ...] = ()) -> RolloutPlan:
    return RolloutPlan(
        tasks=tasks,
        rollouts_per_task=rollouts,
        version=3,
        sampling=SamplingParams(),
        skills=skills,
    )


def kinds_of(group: TrajectoryGroup) -> list[FailureKind]:
    return [failure.kind for failure in group.failures]


async def test_results_lie_in_slots_in_order(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    def script(session: Session) -> list[str]:
        index, rollout = session
        pause = 0.3 - 0.1 * index - 0.05 * rollout  # the first slots finish last
        return [f"sleep {pause:.2f}", "touch done" if rollout else "true", "submit"]

    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(script)
    orchestrator = make_orchestrator(engine, machines)
    seen: list[tuple[int, int, float]] = []

    async def note(index: int, trajectory: Trajectory) -> None:
        seen.append((index, trajectory.rollout, trajectory.task_reward))

    tasks = [make_task("b"), make_task("a")]
    groups = await orchestrator.run(plan_of(*tasks), on_trajectory=note)
    assert [group.task.id for group in groups] == ["b", "a"]
    assert [[t.rollout for t in group.trajectories] for group in groups] == [[0, 1], [0, 1]]
    assert [[t.task_reward for t in group.trajectories] for group in groups] == [[0, 1], [0, 1]]
    assert all(group.is_complete for group in groups)
    assert sorted(seen) == [(0, 0, 0.0), (0, 1, 1.0), (1, 0, 0.0), (1, 1, 1.0)]
    assert orchestrator.num_finished == 4
    assert (machines.num_created, machines.num_stopped, machines.num_left) == (4, 4, 0)
    trajectory = groups[0].trajectories[0]
    assert trajectory.finish_reason is FinishReason.SUBMITTED
    assert trajectory.instruction == "Do it."
    assert set(trajectory.durations_s) == {"start", "agent", "verify"}


async def test_infrastructure_failures_are_typed_and_leave_the_group_incomplete(
    tmp_path: Path, make_task: Callable[..., Task], caplog: pytest.LogCaptureFixture
) -> None:
    scripts = {
        (0, 0): ["touch done", "submit"],
        (0, 1): ["die"],
        (0, 2): ["ls", "submit"],
        (0, 3): ["bug"],
    }
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(scripts, failures=[((0, 2), 1)])
    (group,) = await make_orchestrator(engine, machines).run(plan_of(make_task("t"), rollouts=4))
    assert [t.rollout for t in group.trajectories] == [0]
    assert [(f.rollout, f.kind) for f in group.failures] == [
        (1, FailureKind.SANDBOX),
        (2, FailureKind.INFERENCE),
        (3, FailureKind.HARNESS),
    ]
    assert "SandboxError: the machine died" in group.failures[0].message
    assert "ValueError: a bug" in group.failures[2].message
    assert not group.is_complete
    assert (machines.num_stopped, machines.num_left) == (4, 0)
    assert "rollout t/1 lost (sandbox)" in caplog.text


async def test_V01_tests_without_a_reward_are_a_verifier_failure(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["submit"])
    tasks = [make_task("silent", "false\n"), make_task("good")]
    silent, good = await make_orchestrator(engine, machines).run(plan_of(*tasks))
    assert kinds_of(silent) == [FailureKind.VERIFIER] * 2
    assert [t.task_reward for t in good.trajectories] == [0.0, 0.0]
    assert machines.num_left == 0


async def test_a_sandbox_that_cannot_be_made_concerns_its_task_only(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["submit"])
    bad = make_task("bad")
    bad = replace(bad, environment=replace(bad.environment, docker_image="absent"))
    first, second = await make_orchestrator(engine, machines).run(plan_of(bad, make_task("good")))
    assert kinds_of(first) == [FailureKind.SANDBOX] * 2
    assert second.is_complete


async def test_a_sandbox_that_cannot_be_removed_costs_no_trajectory(
    tmp_path: Path, make_task: Callable[..., Task], caplog: pytest.LogCaptureFixture
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    machines.fails_to_stop = True
    engine = scripted_engine(lambda session: ["touch done", "submit"])
    (group,) = await make_orchestrator(engine, machines).run(plan_of(make_task("t")))
    assert [t.task_reward for t in group.trajectories] == [1.0, 1.0]
    assert "was not removed" in caplog.text


async def test_a_timeout_finishes_the_episode_and_is_graded(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["touch done", "sleep 30", "submit"])
    task = make_task("slow", agent_timeout_s=0.5)
    started = time.perf_counter()
    (group,) = await make_orchestrator(engine, machines).run(plan_of(task))
    assert time.perf_counter() - started < 10
    for trajectory in group.trajectories:
        assert trajectory.finish_reason is FinishReason.TIMEOUT
        assert trajectory.task_reward == 1.0
        # The command that hung is what a judge needs to see.
        assert [turn.action for turn in trajectory.turns] == ["touch done", "sleep 30"]
        assert trajectory.turns[-1].observation == ""
    assert machines.num_left == 0


async def test_H05_a_full_context_is_graded_too(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["touch done", "seq 300", "submit"])
    orchestrator = make_orchestrator(engine, machines, context_tokens=300)
    (group,) = await orchestrator.run(plan_of(make_task("t")))
    assert [(t.finish_reason, t.task_reward) for t in group.trajectories] == [
        (FinishReason.CONTEXT_LIMIT, 1.0)
    ] * 2


async def test_lockstep_makes_trajectories_independent_of_latencies(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    tasks = [make_task(name) for name in ("a", "b", "c")]

    def script(session: Session) -> list[str]:
        length = (2 * session[0] + session[1]) % 4
        return [*(f"echo {turn}" for turn in range(length)), "touch done", "submit"]

    results = []
    for run in range(3):
        chance = random.Random(run)
        machines = FolderMachines(
            tmp_path / f"machines{run}", latency=lambda chance=chance: chance.random() * 0.02
        )
        engine = scripted_engine(script, BatchSensitiveEngine)
        orchestrator = make_orchestrator(engine, machines, max_in_flight=4)
        results.append(await orchestrator.run(plan_of(*tasks, rollouts=3)))
        assert machines.most_at_once <= 4
    assert results[0] == results[1] == results[2]
    assert all(group.is_complete for group in results[0])


async def test_max_in_flight_counts_sandboxes_that_are_being_graded(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["submit"])
    task = make_task("slow-tests", "sleep 0.1\n" + PASSES_IF_DONE)
    (group,) = await make_orchestrator(engine, machines, max_in_flight=2).run(
        plan_of(task, rollouts=6)
    )
    assert group.is_complete
    assert machines.most_at_once == 2


async def test_seeds_depend_on_version_task_and_rollout_only(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    tasks = [make_task("a"), make_task("b")]

    async def seeds(*order: Task, version: int = 3) -> dict[tuple[str, int], int]:
        machines = FolderMachines(Path(tempfile.mkdtemp(dir=tmp_path)) / "machines")
        engine = scripted_engine(lambda session: ["submit"])
        plan = replace(plan_of(*order), version=version)
        await make_orchestrator(engine, machines).run(plan)
        return {
            (order[request.session[0]].id, request.session[1]): request.sampling.seed
            for request in engine.requests
        }

    first = await seeds(*tasks)
    assert len(set(first.values())) == 4
    assert await seeds(*reversed(tasks)) == first
    assert not set((await seeds(*tasks, version=4)).values()) & set(first.values())


@pytest.mark.parametrize("max_in_flight", [None, 2])
async def test_cancelling_stops_every_sandbox(
    tmp_path: Path,
    make_task: Callable[..., Task],
    max_in_flight: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["sleep 30", "submit"])
    orchestrator = make_orchestrator(engine, machines, max_in_flight=max_in_flight)
    run = asyncio.create_task(orchestrator.run(plan_of(make_task("t"), rollouts=4)))
    async with asyncio.timeout(10):
        await machines.have_started(max_in_flight or 4)
    await asyncio.sleep(0.1)
    started = time.perf_counter()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert time.perf_counter() - started < 5
    assert machines.num_stopped == machines.num_created == (max_in_flight or 4)
    assert machines.num_left == 0
    assert caplog.text == ""


async def test_an_impossible_configuration_ends_the_run(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["submit"])
    skills = (InjectedSkill(pair_id=1, revision=0, text="x" * 5000),)
    with pytest.raises(ConfigError, match=r"rollout\.context_tokens"):
        await make_orchestrator(engine, machines).run(plan_of(make_task("t"), skills=skills))
    assert machines.num_left == 0


async def test_a_fault_in_what_follows_an_episode_is_raised_as_it_is(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    machines = FolderMachines(tmp_path / "machines")
    engine = scripted_engine(lambda session: ["submit"])

    async def fail(index: int, trajectory: Trajectory) -> None:
        raise VerifierError("a bug in the review")

    with pytest.raises(VerifierError, match="a bug in the review"):
        await make_orchestrator(engine, machines).run(plan_of(make_task("t")), on_trajectory=fail)
    assert machines.num_left == 0


async def test_no_task_gives_no_group(tmp_path: Path) -> None:
    machines = FolderMachines(tmp_path / "machines")
    assert await make_orchestrator(scripted_engine({}), machines).run(plan_of()) == []


async def test_episodes_run_in_real_sandboxes(make_task: Callable[..., Task]) -> None:
    test = "if [ -f /tmp/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    factory = BubblewrapFactory(
        sandbox_uid=65534,
        storage_mb=16,
        memory_mb=256,
        max_processes=32,
        max_output_bytes=4096,
        start_timeout_s=20,
    )
    engine = scripted_engine(
        {
            (0, 0): ["cd /tmp", "touch done", "submit"],
            (0, 1): ["cd /tmp && export X=5", "echo $X > value; cat value", "submit"],
        }
    )
    try:
        (group,) = await make_orchestrator(engine, factory).run(plan_of(make_task("t", test)))
    finally:
        factory.close()
    assert [t.task_reward for t in group.trajectories] == [1.0, 0.0]
    assert group.trajectories[1].turns[1].observation == "5"
