"""An engine operated by hand and machines that take no time, for tests of what runs when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arise.agents.groups import Admission, StreamOptions
from arise.agents.stream import RolloutStream
from arise.environments.base import Environment, EnvironmentFactory, ExecResult
from arise.errors import InferenceError
from arise.inference.base import Completion, Engine, GenerationRequest, SamplingParams
from arise.types import Review, SampledTask, Task, Trajectory
from shell_agent import TOKENIZER, make_orchestrator

Session = tuple[int, int]


class HandEngine(Engine):
    """Each call waits until somebody answers it.

    Attributes:
        version: What tokens are stamped with, if the answer does not say otherwise.
        calls: Open calls by session.
        num_batches: Calls of `generate` so far.
    """

    max_context_tokens = 4000

    def __init__(self, *, is_concurrent: bool = True) -> None:
        self.is_concurrent = is_concurrent
        self.version = 0
        self.calls: dict[Session, asyncio.Future[tuple[str, tuple[int, ...]] | InferenceError]] = {}
        self.num_batches = 0

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        self.num_batches += 1
        return list(await asyncio.gather(*map(self._answered, requests)))

    async def _answered(self, request: GenerationRequest) -> Completion | InferenceError:
        future = self.calls[request.session] = asyncio.get_running_loop().create_future()
        try:
            answer = await future
        finally:
            self.calls.pop(request.session, None)
        if isinstance(answer, InferenceError):
            return answer
        text, versions = answer
        ids = (*TOKENIZER(text, add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id)
        versions = versions + (versions[-1],) * (len(ids) - len(versions))
        return Completion(
            token_ids=ids,
            logprobs=(-1.0,) * len(ids),
            policy_versions=versions,
            finish_reason="stop",
        )

    async def answer(self, session: Session, text: str = "submit", *versions: int) -> None:
        """Answer an open call and let everything happen that follows at once."""
        self.calls[session].set_result((text, versions or (self.version,)))
        await settle()

    async def fail(self, session: Session) -> None:
        """Lose an open call."""
        self.calls[session].set_result(InferenceError("the server is gone"))
        await settle()

    async def release(self, session: Session) -> None:
        """Nothing is kept."""


async def settle() -> None:
    """Let the loop run until only waiting is left."""
    for _ in range(60):
        await asyncio.sleep(0)


class InstantMachine(Environment):
    """Everything succeeds at once."""

    def __init__(self, factory: InstantMachines) -> None:
        self._factory = factory

    async def start(self) -> None:
        self._factory.num_alive += 1
        self._factory.most_alive = max(self._factory.most_alive, self._factory.num_alive)

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        return ExecResult(exit_code=0, output="")

    async def grade(
        self, tests: Path | Sequence[Path], *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        return {"reward.json": None, "reward.txt": b"1", "output": b""}

    async def stop(self) -> None:
        self._factory.num_alive -= 1


class InstantMachines(EnvironmentFactory):
    """Counts its machines."""

    def __init__(self) -> None:
        self.num_alive = 0
        self.most_alive = 0

    def create(self, task: Task, *, name: str) -> Environment:
        return InstantMachine(self)


def make_stream(
    engine: HandEngine,
    machines: InstantMachines | None = None,
    *,
    eta: int = 1,
    batch: int = 2,
    rollouts: int = 1,
    episodes: int = 100,
    deterministic: bool = False,
    **changes: Any,
) -> RolloutStream:
    options = StreamOptions(
        rollouts_per_task=rollouts,
        sampling=SamplingParams(),
        max_staleness=eta,
        max_groups=(eta + 1) * batch,
        max_episodes=episodes,
    )
    orchestrator = make_orchestrator(
        engine, machines or InstantMachines(), deterministic=deterministic
    )
    return RolloutStream(orchestrator, options, **{"review": None, "pairs": tuple, **changes})


def admission(serial: int, version: int = 0) -> Admission:
    task = Task(id=f"t{serial}", instruction="Do it.", path=Path(), tests=Path())
    return Admission(serial=serial, version=version, sample=SampledTask(task=task))


async def review_nothing(sample: SampledTask, trajectory: Trajectory, pairs: Any) -> Review:
    return Review(judged_pair_ids=tuple(pair.id for pair in pairs))
