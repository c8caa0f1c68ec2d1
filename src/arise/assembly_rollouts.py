"""From configuration to how rollouts are sampled, streamed and credited; heavy imports inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from arise.rollout_sizes import max_episodes, max_groups

if TYPE_CHECKING:
    from arise.algorithms.credit import CreditOptions
    from arise.inference.base import SamplingParams


def sampling_of(group: DictConfig) -> SamplingParams:
    """Sampling parameters of a group that has them."""
    from arise.inference.base import SamplingParams

    return SamplingParams(temperature=group.temperature, top_p=group.top_p, top_k=group.top_k)


def build_asynchronous(run: Any) -> Any:
    """What plays groups beside the training step; `None` with `rollout.max_staleness` = 0.

    Args:
        run: The parts of a run, those below this one built (`arise.app.Run`).
    """
    return None if run.cfg.rollout.max_staleness == 0 else asynchronous_of(run)


def asynchronous_of(run: Any) -> Any:
    """What plays groups in a stream, whatever η; at η = 0 it does what a synchronous step does.

    Args:
        run: The parts of a run (`arise.app.Run`).
    """
    cfg, judge, curriculum = run.cfg, run.judge, run.curriculum
    from arise.agents.groups import StreamOptions
    from arise.agents.stream import RolloutStream
    from arise.callbacks.asynchronous import AsynchronousRollouts

    async def review(sample: Any, trajectory: Any, pairs: Any) -> Any:
        return await judge.review(sample.task, trajectory, pairs)

    rollout = cfg.rollout
    stream = RolloutStream(
        run.orchestrator,
        StreamOptions(
            rollouts_per_task=rollout.rollouts_per_task,
            sampling=sampling_of(rollout),
            max_staleness=rollout.max_staleness,
            max_groups=max_groups(cfg),
            max_episodes=max_episodes(cfg) or rollout.tasks_per_step * rollout.rollouts_per_task,
            strips_skills=run.variant.strips_scaffold,
        ),
        review=review if judge is not None and run.variant.online is None else None,
        pairs=lambda: curriculum.pairs,
    )
    return AsynchronousRollouts(
        loop=run.loop,
        stream=stream,
        curriculum=curriculum,
        tasks=run.tasks,
        tasks_per_step=rollout.tasks_per_step,
        rollouts_per_task=rollout.rollouts_per_task,
        variant=run.variant,
    )


def build_credit(cfg: DictConfig) -> CreditOptions:
    """How verdicts and tests become advantages (Eq. 15 to 17)."""
    from arise.algorithms.credit import CreditOptions

    # What the policy is rewarded with, where a baseline has a reward of its own.
    rewards = {"ruscarl": "points", "online": "criteria"}
    names = ("rubric_weight", "std", "epsilon", "length_alpha", "length_threshold_tokens")
    return CreditOptions(
        **{name: cfg.algorithm[name] for name in names},
        reward=rewards.get(cfg.rubrics.mode, "verifier"),
        outcome_weight=cfg.rubrics.online.outcome_weight,
    )
