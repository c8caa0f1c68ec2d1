"""Iterations from the stream: what is admitted, what a saved state restores (K03)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from arise.aio import EventLoopThread
from arise.callbacks.asynchronous import AsynchronousRollouts
from arise.curriculum.curriculum import Curriculum
from arise.curriculum.factory import make_sampler
from arise.errors import InferenceError
from arise.inference.base import Completion, GenerationRequest
from arise.rubrics.variant import Variant
from arise.types import Iteration, Task
from streams import HandEngine, make_stream

BATCH = 2
TASKS = [Task(id=f"t{n}", instruction="Do it.", path=Path(), tests=Path()) for n in range(30)]


class InstantEngine(HandEngine):
    """Submits at once."""

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        self.num_batches += 1
        return [
            Completion(
                token_ids=(115, 117, 98, 109, 105, 116, 2),
                logprobs=(-1.0,) * 7,
                policy_versions=(self.version,) * 7,
                finish_reason="stop",
            )
            for _ in requests
        ]


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    loop = EventLoopThread()
    yield loop
    loop.close()


class Part:
    """A source with its parts."""

    def __init__(self, loop: EventLoopThread, *, eta: int = 1, tasks: Sequence[Task] = TASKS):
        self.engine = InstantEngine()
        self.stream = make_stream(self.engine, eta=eta, batch=BATCH)
        sampler = make_sampler(
            "uniform",
            tasks=tasks,
            seed=1,
            min_discovery_probability=0.1,
            pair_quota=0.25,
            gamma_obs=0.2,
            gamma_unobs=0.999,
            quarantine_after=3,
        )
        self.curriculum = Curriculum(sampler=sampler, tasks_per_step=BATCH, seed=1)
        self.source = AsynchronousRollouts(
            loop=loop,
            stream=self.stream,
            curriculum=self.curriculum,
            tasks=tasks,
            tasks_per_step=BATCH,
            rollouts_per_task=1,
            variant=Variant(),
        )

    def step(self, index: int) -> Iteration:
        self.engine.version = index
        iteration = Iteration(index=index)
        self.source.collect(iteration)
        assert self.stream.num_free >= 0
        self.engine.version = index + 1
        iteration.metrics |= self.source.advance(index + 1)
        self.curriculum.observe(iteration)
        return iteration


def saved_at(version: int, tasks: Sequence[str]) -> dict[str, Any]:
    """The state of a run whose trainer is at `version`, with these tasks in flight."""
    first = BATCH * version
    serials = range(first, first + len(tasks))
    return {
        "account": {
            "num_started": first + len(tasks),
            "num_trained": first,
            "dropped": {},
            "failed": {},
            "in_flight": tuple(serials),
        },
        "in_flight": [
            {
                "serial": serial,
                "task_id": task_id,
                "reason": "adaptive",
                "tag": "csv",
                "capability": "debugging",
                "numbers": {"passes": 2.0},
            }
            for serial, task_id in zip(serials, tasks, strict=True)
        ],
    }


def test_steps_have_whole_batches_of_distinct_tasks(loop: EventLoopThread) -> None:
    part = Part(loop)
    for index in range(6):
        iteration = part.step(index)
        ids = [task.id for task in iteration.tasks]
        assert len(set(ids)) == len(ids) == len(iteration.groups) == BATCH
        assert not set(ids) & part.stream.task_ids
        assert iteration.metrics["staleness/token_max"] <= 1
        assert iteration.metrics["staleness/trained_groups"] == BATCH * (index + 1)
    assert iteration.metrics["staleness/started_groups"] == 14
    assert iteration.metrics["staleness/in_flight_groups"] == 2


def test_K03_resumed_at_version_50_there_are_four_groups_and_not_104(
    loop: EventLoopThread,
) -> None:
    part = Part(loop)
    state = saved_at(50, ["t3", "t9"])
    part.source.load_state_dict(state)
    assert part.source.state_dict() == state, "an interrupt before the first step loses nothing"
    iteration = part.step(50)
    assert [sample.task.id for sample in iteration.samples] == ["t3", "t9"]
    assert iteration.samples[0].reason == "adaptive"
    assert iteration.samples[0].capability == "debugging"
    account = part.stream.account
    assert (account.num_started, account.num_trained) == (104, 102)
    assert part.stream.admissions[0].serial == 102
    for index in range(51, 56):
        assert part.step(index).metrics["staleness/token_max"] <= 1
    assert account.num_started == account.num_trained + 2


def test_a_smaller_bound_and_a_smaller_corpus_drop_what_does_not_fit(
    loop: EventLoopThread,
) -> None:
    part = Part(loop, eta=0, tasks=TASKS[:5])
    part.source.load_state_dict(saved_at(7, ["t9", "t1", "t2", "t3"]))
    iteration = part.step(7)
    assert [task.id for task in iteration.tasks] == ["t1", "t2"]
    assert dict(part.stream.account.dropped) == {"task_removed": 1, "over_bound": 1}
    assert iteration.metrics["staleness/dropped_over_bound"] == 1
    assert part.stream.account.in_flight == ()


def test_with_fewer_tasks_than_a_batch_the_step_is_the_whole_set(loop: EventLoopThread) -> None:
    part = Part(loop, tasks=TASKS[:1])
    for index in range(3):
        assert [task.id for task in part.step(index).tasks] == ["t0"]
