"""One iteration, from the tasks that were drawn to the figures it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arise.types.reviews import Capability, Criterion, Review
from arise.types.tasks import Task
from arise.types.trajectories import InjectedSkill, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTask:
    """A task and why the sampler chose it.

    Attributes:
        task: The task.
        reason: `"discovery"`, `"adaptive"`, `"fallback"`, `"uniform"` or `"vade"`.
        tag: Task type of the chosen pair, if adaptive.
        capability: Capability of the chosen pair, if adaptive.
        numbers: What the choice rested on, by name; see the sampler.
    """

    task: Task
    reason: str = "uniform"
    tag: str | None = None
    capability: Capability | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Iteration:
    """One sampled batch on its way to one optimizer step. Lists align with `samples` by index.

    Attributes:
        index: k; also the policy version that generates. Filled by the data module.
        samples: The B tasks and why they were drawn. Filled by the data module.
        skills: Skills injected into every rollout. Filled at admission, by the data module.
        groups: One group per sample. Filled by the rollout callback.
        reviews: `reviews[i][j]` belongs to `groups[i].slots[j]`; `None` for a lost rollout or
            where no judge runs. Filled by the rollout callback.
        criteria: `criteria[i]` are those elicited for `samples[i]`; OnlineRubrics only.
        shaped_rewards: `[i][j]` after Eq. 17, or the score of a baseline that has its own reward;
            `None` for a lost rollout, or one without a score.
        advantages: `[i][j]` after Eq. 15 and 16; `None` for a lost rollout.
        num_generated_tokens: Σm of Eq. 19 over all ranks.
        micro_batches: This rank's packed rows (`arise.algorithms.packing.PackedBatch`).
        log_ratios: float32[N] tensors of log ω of a row's generated tokens before the step, by
            the row's number among the training rows. Filled on rank 0 by the learning step.
        metrics: Scalars by TensorBoard name.
        durations_s: Seconds by phase.
        started_at: `time.perf_counter()` at the draw. Filled by the data module.
    """

    index: int
    samples: list[SampledTask] = field(default_factory=list)
    skills: tuple[InjectedSkill, ...] = ()
    groups: list[TrajectoryGroup] = field(default_factory=list)
    reviews: list[list[Review | None]] = field(default_factory=list)
    criteria: list[tuple[Criterion, ...]] = field(default_factory=list)
    shaped_rewards: list[list[float | None]] = field(default_factory=list)
    advantages: list[list[float | None]] = field(default_factory=list)
    num_generated_tokens: int = 0
    micro_batches: list[Any] = field(default_factory=list)
    log_ratios: dict[int, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    durations_s: dict[str, float] = field(default_factory=dict)
    started_at: float = 0.0

    @property
    def tasks(self) -> list[Task]:
        """The sampled tasks, in draw order."""
        return [sample.task for sample in self.samples]
