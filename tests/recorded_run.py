"""A run folder of any size, made by the writers that real runs use, without playing anything.

Texts may be hostile: whatever an agent, its sandbox or a judge wrote must be shown, never obeyed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from arise.modules.loading import RandomModel
from arise.rubrics.pool import Refinement, RubricPool
from arise.rubrics.proposals import EvidenceRef, PairProposal
from arise.runs.folder import RunFolder
from arise.runs.manifest import write_manifest
from arise.runs.records import slot_records, trajectory_file, write_records
from arise.types import (
    Capability,
    Diagnostic,
    FailureKind,
    FinishReason,
    Iteration,
    Outcome,
    Review,
    RolloutFailure,
    SampledTask,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Verdict,
)

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!--\x1b[31mred\x1b[2J\x07\x00\u202etxt.exe\u2028\ufeff&lt;{{7*7}}"
)

_WORDS = "ls cat sort grep the file into out.txt notes.md | > -u -n wc head tail result".split()
_TAGS = ("sorting", "csv", "archiving", "searching", "editing", "reporting")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSize:
    """How large a run is to be made.

    Attributes:
        steps: Iterations.
        tasks: B.
        rollouts: G.
        turns: Turns of a trajectory.
        tokens: Generated tokens of a turn (one a byte).
        pairs: Pairs in the pool.
        text: Put into every text that somebody else wrote.
    """

    steps: int = 8
    tasks: int = 4
    rollouts: int = 4
    turns: int = 3
    tokens: int = 24
    pairs: int = 2
    text: str = ""


RUN_SIZE = RunSize(steps=8, tasks=4, rollouts=4)
"""Small, with everything in it."""


def write_run(run: Path, size: RunSize, *, seed: int = 0) -> Path:
    """Write the folder; the same size and seed give the same run.

    Returns:
        The folder.
    """
    maker = _Maker(size, random.Random(seed))
    (run / ".hydra").mkdir(parents=True)
    OmegaConf.save(_config(size), run / ".hydra" / "config.yaml")
    folder = RunFolder(path=run)
    maker.tokenizer.save_pretrained(folder.tokenizer)
    pool = RubricPool(max_pairs=64, max_new_pairs=size.pairs, max_text_chars=2000)
    events: list[dict[str, Any]] = []
    with SummaryWriter(str(run / "tensorboard")) as board:
        for step in range(1, size.steps + 1):
            iteration = maker.iteration(step - 1, pool)
            write_records(trajectory_file(folder.trajectories, step), slot_records(iteration))
            maker.observe(pool, iteration)
            if step % 2 == 0:
                events += maker.evolve(pool, step)
            for name, value in maker.scalars(iteration).items():
                board.add_scalar(name, value, step)
    folder.pool_log.write_text("".join(json.dumps(event) + "\n" for event in events))
    results = [(0, 20.0), (size.steps, 45.5)]
    folder.evaluations.write_text(
        "".join(
            json.dumps(
                {"step": s, "percent": p, "runs_percent": [p], "num_tasks": 40, "num_errors": 0}
            )
            + "\n"
            for s, p in results
        )
    )
    checkpoint = folder.checkpoints / f"step_{size.steps:06d}"
    checkpoint.mkdir(parents=True)
    write_manifest(checkpoint, step=size.steps, num_processes=1)
    return run


def _config(size: RunSize) -> dict[str, Any]:
    return {
        "experiment_name": f"arise{size.text}",
        "seed": 3,
        "trainer": {"max_steps": size.steps, "devices": 1, "num_nodes": 1},
        "algorithm": {"ratio_low": 0.5, "ratio_high": 5.0, "dual_clip": 3.0},
        "rubrics": {"mode": "dynamic", "eta_low": 0.3, "eta_high": 0.9, "update_interval": 2},
        "rollout": {"tasks_per_step": size.tasks, "rollouts_per_task": size.rollouts},
    }


class _Maker:
    """Draws iterations."""

    def __init__(self, size: RunSize, rng: random.Random) -> None:
        self.size = size
        self.rng = rng
        self.tokenizer = RandomModel(
            seed=0, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
        ).tokenizer()

    def iteration(self, index: int, pool: RubricPool) -> Iteration:
        tasks = [self._task(n) for n in self.rng.sample(range(200), self.size.tasks)]
        iteration = Iteration(index=index, samples=[self._sample(task) for task in tasks])
        iteration.skills = tuple(pool.active_skills())
        for task in tasks:
            slots = tuple(self._slot(task, j, iteration) for j in range(self.size.rollouts))
            iteration.groups.append(TrajectoryGroup(task=task, slots=slots))
            iteration.reviews.append([self._review(slot, pool) for slot in slots])
            rewards = [s.task_reward if isinstance(s, Trajectory) else None for s in slots]
            iteration.shaped_rewards.append(rewards)
            iteration.advantages.append(
                [None if r is None else self.rng.gauss(r - 0.5, 0.5) for r in rewards]
            )
        self._ratios(iteration)
        return iteration

    def _task(self, number: int) -> Task:
        tags = (_TAGS[number % 6] + self.size.text, _TAGS[(number // 6) % 6])
        return Task(
            id=f"task-{number:03d}{self.size.text}",
            instruction=f"Sort the lines of file {number}.{self.size.text}",
            path=Path("t"),
            tests=Path("t"),
            tags=tuple(dict.fromkeys(tags)),
        )

    def _sample(self, task: Task) -> SampledTask:
        if self.rng.random() < 0.5:
            numbers = {"discovery_probability": 0.5, "num_attempts": 1.0}
            return SampledTask(task=task, reason="discovery", numbers=numbers)
        return SampledTask(
            task=task,
            reason="adaptive",
            tag=task.tags[0],
            capability=self.rng.choice(list(Capability)),
            numbers={"passes": 2.0, "failures": 5.0, "drawn_pass_rate": 0.25},
        )

    def _slot(self, task: Task, rollout: int, iteration: Iteration) -> Trajectory | RolloutFailure:
        if self.rng.random() < 0.03:
            message = f"the sandbox died{self.size.text}"
            return RolloutFailure(
                task_id=task.id, rollout=rollout, kind=FailureKind.SANDBOX, message=message
            )
        return Trajectory(
            task_id=task.id,
            rollout=rollout,
            turns=tuple(self._turn(n, iteration.index) for n in range(self.size.turns)),
            finish_reason=self.rng.choice(list(FinishReason)),
            task_reward=self.rng.choice((0.0, 0.0, 0.5, 1.0)),
            skills=iteration.skills,
            instruction=task.instruction,
            durations_s={"start": 0.3, "agent": 4.0 + self.rng.random(), "verify": 0.5},
        )

    def _turn(self, number: int, version: int) -> Turn:
        words = " ".join(self.rng.choices(_WORDS, k=max(1, self.size.tokens // 5)))
        text = words[: self.size.tokens] + self.size.text
        ids = tuple(self.tokenizer.encode(text))
        return Turn(
            prompt_token_ids=(1, 2),
            token_ids=ids,
            logprobs=tuple(-self.rng.expovariate(2.0) for _ in ids),
            policy_versions=(version,) * len(ids),
            text=text,
            action=text,
            observation="\n".join(self.rng.choices(_WORDS, k=4)) + self.size.text,
            exit_code=self.rng.choice((0, 0, 1)),
            starts_row=number == 0,
        )

    def _review(self, slot: Trajectory | RolloutFailure, pool: RubricPool) -> Review | None:
        if not isinstance(slot, Trajectory):
            return None
        outcomes = (Outcome.PASS, Outcome.FAIL, Outcome.FAIL, Outcome.NOT_APPLICABLE, None)
        drawn = {pair.id: self.rng.choice(outcomes) for pair in pool.pairs}
        reason = f"step 2 shows it{self.size.text}"
        return Review(
            judged_pair_ids=tuple(drawn),
            verdicts=tuple(
                Verdict(pair_id=pair_id, outcome=outcome, reason=reason)
                for pair_id, outcome in drawn.items()
                if outcome is not None
            ),
            diagnostics=(
                Diagnostic(kind="gap", behaviour=f"does not look{self.size.text}", signal="step 1"),
            ),
        )

    def _ratios(self, iteration: Iteration) -> None:
        survivors = [t for group in iteration.groups for t in group.trajectories]
        for number, trajectory in enumerate(survivors):
            values = [self.rng.gauss(0.0, 0.3) for _ in range(trajectory.num_generated_tokens)]
            iteration.log_ratios[number] = torch.tensor(values)

    def observe(self, pool: RubricPool, iteration: Iteration) -> None:
        for group, reviews in zip(iteration.groups, iteration.reviews, strict=True):
            for review in reviews:
                if review is not None:
                    pool.observe(group.task.id, review.verdicts)

    def evolve(self, pool: RubricPool, step: int) -> list[dict[str, Any]]:
        proposals = list(self._proposals(step)) if len(pool) < self.size.pairs else []
        texts = {
            pair.id: Refinement(
                text=f"Look closely, at step {step}.{self.size.text}", num_records=6
            )
            for pair in pool.pairs
        }
        actions = pool.decide(eta_low=0.3, eta_high=0.9)
        return list(pool.update(step, actions, refinements=texts, proposals=proposals))

    def _proposals(self, step: int) -> Iterator[PairProposal]:
        for number in range(self.size.pairs):
            reference = EvidenceRef(task_id="task-001", iteration=step - 1, rollout=0)
            yield PairProposal(
                title=f"Look before you write {step}.{number}{self.size.text}",
                capability="verification",
                applicability=f"always{self.size.text}",
                fail_condition="does not look",
                pass_condition="looks",
                skill=f"Look first.{self.size.text}",
                issues=(reference,),
                contrasts=(EvidenceRef(task_id="task-002", iteration=step - 1, rollout=1),),
            )

    def scalars(self, iteration: Iteration) -> dict[str, float]:
        survivors = [t for group in iteration.groups for t in group.trajectories]
        return {
            "reward/pass_rate": sum(t.is_success for t in survivors) / len(survivors),
            "loss/entropy": 1.0 / (iteration.index + 1),
            "time/iteration_s": 10.0,
            "time/rollout_s": 7.0,
            "time/train_s": 2.0,
            "time/sync_s": 0.5,
            "judge/prompt_tokens": 1000.0,
        }
