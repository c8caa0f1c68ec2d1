"""From the configuration's `curriculum` group to a sampler."""

from __future__ import annotations

from collections.abc import Sequence

from arise.curriculum.base import TaskSampler
from arise.curriculum.capability import CapabilitySampler
from arise.curriculum.uniform import UniformSampler
from arise.curriculum.vade import VadeSampler
from arise.errors import ConfigError
from arise.types import Task


def make_sampler(
    sampler: str,
    *,
    tasks: Sequence[Task],
    seed: int,
    min_discovery_probability: float,
    pair_quota: float,
    gamma_obs: float,
    gamma_unobs: float,
    quarantine_after: int,
) -> TaskSampler:
    """The sampler named by `curriculum.sampler`, with the constants it uses.

    Args:
        sampler: `"capability"`, `"uniform"` or `"vade"`.
        tasks: The training set X.
        seed: Seed of the sampler's own generator.
        min_discovery_probability: ρ_min of Eq. 12; capability only.
        pair_quota: b of Appendix B.5; capability only.
        gamma_obs: γ_obs; capability and vade.
        gamma_unobs: γ_unobs; capability and vade.
        quarantine_after: Infrastructure failures in a row that set a task aside.

    Raises:
        ConfigError: If the name is not known or a value is out of range.
    """
    if sampler == "capability":
        return CapabilitySampler(
            tasks=tasks,
            seed=seed,
            quarantine_after=quarantine_after,
            min_discovery_probability=min_discovery_probability,
            pair_quota=pair_quota,
            gamma_obs=gamma_obs,
            gamma_unobs=gamma_unobs,
        )
    if sampler == "vade":
        return VadeSampler(
            tasks=tasks,
            seed=seed,
            quarantine_after=quarantine_after,
            gamma_obs=gamma_obs,
            gamma_unobs=gamma_unobs,
        )
    if sampler == "uniform":
        return UniformSampler(tasks=tasks, seed=seed, quarantine_after=quarantine_after)
    raise ConfigError(
        f"curriculum.sampler is {sampler!r}; allowed are capability, uniform and vade"
    )
