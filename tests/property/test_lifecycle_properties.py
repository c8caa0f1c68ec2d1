"""Random histories of the whole curriculum, written down as a run writes them, with deaths.

Pool, sampler, evidence buffer, life cycle and recorder are real; the reflection is scripted.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import tempfile
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import LightningModule, Trainer

from arise.callbacks.recorder import RecorderCallback
from arise.curriculum.curriculum import Curriculum, RubricParts
from arise.curriculum.factory import make_sampler
from arise.llm.chat import ChatRequest, Purpose
from arise.llm.scripted import ScriptedChatModel
from arise.rubrics.diagnostics import EvidenceBuffer
from arise.rubrics.events import read_events, replay
from arise.rubrics.evolution import Evolution
from arise.rubrics.pool import RubricPool
from arise.rubrics.prompting import Prompts
from arise.rubrics.reflection import Reflection
from arise.runs.folder import RunFolder
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

G, INTERVAL, STEPS = 3, 2, 10
TASKS = [
    Task(id=f"t{i}", instruction="x", path=Path(), tests=Path(), tags=(f"d{i % 2}", f"e{i % 3}"))
    for i in range(6)
]
CAPABILITIES = list(Capability)
TRAINER = Trainer(
    accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
"""Tells the recorder the step; making one takes longer than a whole history."""


def number(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


class History:
    """A run of a curriculum on verdicts that a salt decides; writes into a folder of its own."""

    def __init__(self, folder: Path, salt: int) -> None:
        self.folder = RunFolder(path=folder)
        self.salt = salt
        self.start(0)

    def start(self, step: int, state: bytes | None = None) -> None:
        """A new process: a fresh run, or one that goes on from a checkpoint."""
        pool = RubricPool(max_pairs=6, max_new_pairs=3, max_text_chars=200)
        self.curriculum = Curriculum(
            sampler=make_sampler(
                "capability",
                tasks=TASKS,
                seed=self.salt,
                min_discovery_probability=0.1,
                pair_quota=0.25,
                gamma_obs=0.2,
                gamma_unobs=0.999,
                quarantine_after=3,
            ),
            tasks_per_step=3,
            seed=self.salt,
            rubrics=RubricParts(
                pool=pool,
                buffer=EvidenceBuffer(max_records=4),
                evolution=Evolution(eta_low=0.3, eta_high=0.9, update_interval=INTERVAL),
                reflection=Reflection(model=ScriptedChatModel(self.answer), prompts=Prompts()),
            ),
        )
        if state is not None:
            self.curriculum.load_state_dict(pickle.loads(state))
        self.recorder = RecorderCallback(folder=self.folder, curriculum=self.curriculum)
        self.set_step(step)
        self.recorder.on_train_start(TRAINER, LightningModule())

    def set_step(self, step: int) -> None:
        progress = TRAINER.fit_loop.epoch_loop.automatic_optimization.optim_progress
        progress.optimizer.step.total.completed = step

    def answer(self, request: ChatRequest) -> str:
        """Now and then nonsense, a title that is taken, or no pair at all."""
        step = request.payload.metadata.step
        luck = number(self.salt, step, request.purpose, str(request.payload)) % 10
        if luck == 0:
            return "I would rather not."
        if request.purpose is Purpose.REFINEMENT:
            return json.dumps({"skill": f"Text of step {step}."})
        pairs = [
            {
                "title": f"Requirement {number(self.salt, step, n) % 9}",
                "capability": CAPABILITIES[number(self.salt, step, n, "c") % 5],
                "applicability": "Always.",
                "fail_condition": "It is not seen.",
                "pass_condition": "It is seen.",
                "skill": f"Do it as in {step}-{n}.",
                "issue_records": [1],
                "contrast_records": [1],
            }
            for n in range(luck % 4)
        ]
        return json.dumps({"pairs": pairs})

    def review(self, index: int, task_id: str, rollout: int) -> Review:
        """Each pair has a pass rate for each window; some verdicts are missing."""
        verdicts = []
        for pair in self.curriculum.pairs:
            percent = (0, 25, 60, 95, 100)[number(self.salt, pair.id, index // INTERVAL) % 5]
            luck = number(self.salt, index, task_id, rollout, pair.id)
            if luck % 20 == 0:
                continue
            outcome = Outcome.PASS if luck // 20 % 100 < percent else Outcome.FAIL
            if luck % 20 < 3:
                outcome = Outcome.NOT_APPLICABLE
            verdicts.append(Verdict(pair_id=pair.id, outcome=outcome))
        return Review(
            judged_pair_ids=tuple(pair.id for pair in self.curriculum.pairs),
            verdicts=tuple(verdicts),
            diagnostics=(Diagnostic(kind="gap", behaviour="does not look", signal="ls"),),
        )

    def step(self, index: int) -> Iteration:
        """One iteration from draw to record."""
        iteration = self.curriculum.draw(index)
        for sample in iteration.samples:
            slots: list[Trajectory | RolloutFailure] = []
            reviews: list[Review | None] = []
            for j in range(G):
                task_id = sample.task.id
                if number(self.salt, index, task_id, j, "lost") % 12 == 0:
                    failure = FailureKind.SANDBOX
                    slots.append(
                        RolloutFailure(task_id=task_id, rollout=j, kind=failure, message="died")
                    )
                    reviews.append(None)
                    continue
                slots.append(
                    Trajectory(
                        task_id=task_id,
                        rollout=j,
                        turns=(),
                        finish_reason=FinishReason.SUBMITTED,
                        task_reward=float(j % 2),
                        skills=iteration.skills,
                    )
                )
                reviews.append(self.review(index, task_id, j))
            iteration.groups.append(TrajectoryGroup(task=sample.task, slots=tuple(slots)))
            iteration.reviews.append(reviews)
            iteration.shaped_rewards.append([0.0] * G)
            iteration.advantages.append([0.0] * G)
        self.curriculum.observe(iteration)
        asyncio.run(self.curriculum.evolve(index + 1))
        self.set_step(index + 1)
        self.recorder.on_train_batch_end(TRAINER, LightningModule(), None, iteration, index)
        return iteration

    def events(self) -> list[dict[str, Any]]:
        path = self.folder.pool_log
        return read_events(path, key="pool") if path.is_file() else []

    def state(self) -> bytes:
        return pickle.dumps(self.curriculum.state_dict())


def expected_type(was_active: bool, num_passes: int, num_applicable: int) -> set[str]:
    """The table of the life cycle once more, with exact fractions."""
    if not num_applicable:
        return {"kept"}
    rate = Fraction(num_passes, num_applicable)
    if rate >= Fraction(9, 10):
        return {"retired"}
    if rate <= Fraction(3, 10):
        return {"refined", "kept"} if was_active else {"activated"}
    return {"hidden"} if was_active else {"kept"}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_every_event_follows_the_table_and_the_file_rebuilds_every_step(salt: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        history = History(Path(name), salt)
        counts: dict[int, list[int]] = {}
        for index in range(STEPS):
            before = {pair.id: pair for pair in history.curriculum.pairs}
            iteration = history.step(index)
            for review in filter(None, (r for row in iteration.reviews for r in row)):
                for verdict in review.verdicts:
                    if verdict.outcome is not Outcome.NOT_APPLICABLE:
                        own = counts.setdefault(verdict.pair_id, [0, 0])
                        own[0] += verdict.outcome is Outcome.PASS
                        own[1] += 1
            events = history.events()
            told = {e["pair_id"]: e for e in events if e["step"] == index + 1 and "pair_id" in e}
            if (index + 1) % INTERVAL:
                assert not told
            else:
                for pair_id, pair in before.items():
                    numbers = counts.get(pair_id, [0, 0])
                    event = told[pair_id]
                    assert [event["num_passes"], event["num_applicable"]] == numbers
                    assert event["type"] in expected_type(pair.is_active, *numbers)
                counts.clear()
            check_agreement(history, index + 1)
        created = [e["pair_id"] for e in history.events() if e["type"] == "created"]
        assert created == list(range(1, len(created) + 1)), "ids are never reused"


def check_agreement(history: History, step: int) -> None:
    """File, pool and sampler tell the same; counts are integers."""
    live = history.curriculum.pairs
    assert tuple(replay(history.events(), until_step=step).values()) == live
    state = history.curriculum.state_dict()
    sampler, ids = state["sampler"], {pair.id for pair in live}
    assert sampler["capabilities"] == {pair.id: pair.capability.value for pair in live}
    assert sampler["evidence"]["accumulators"].keys() == ids
    assert sampler["coverage"]["tasks_of"].keys() == sampler["records"]["tasks_of"].keys() == ids
    windows = state["pool"]["windows"]
    assert windows.keys() <= ids
    assert all(type(count) is int for pair in windows.values() for count in pair)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.lists(st.integers(1, STEPS - 1), min_size=1, max_size=4))
def test_deaths_change_nothing(salt: int, deaths: list[int]) -> None:
    """A run that dies after some steps and goes on from its last checkpoint, every third step."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / part for part in ("unbroken", "broken")]
        for folder in folders:
            folder.mkdir()
        unbroken, broken = (History(folder, salt) for folder in folders)
        for index in range(STEPS):
            unbroken.step(index)
        saved: tuple[int, bytes | None] = (0, None)
        index, left = 0, sorted(deaths)
        while index < STEPS:
            broken.step(index)
            index += 1
            if left and index >= left[0]:
                left.pop(0)
                broken.start(*saved)
                index = saved[0]
            elif index % 3 == 0:
                saved = (index, broken.state())
        assert broken.curriculum.state_dict() == unbroken.curriculum.state_dict()
        files = [sorted(path for path in folder.rglob("*") if path.is_file()) for folder in folders]
        names = [
            [path.relative_to(folder) for path in own]
            for folder, own in zip(folders, files, strict=True)
        ]
        assert names[0] == names[1]
        for one, two in zip(*files, strict=True):
            assert one.read_bytes() == two.read_bytes(), one.name
