"""The nouns of the product: what flows from sampling to the optimizer step.

Only the standard library is imported here, and every other module may import this one. Types are
frozen, except `Iteration`, which is filled stage by stage.
"""

from arise.types.iteration import (
    Iteration,
    SampledTask,
)
from arise.types.reviews import (
    Capability,
    Criterion,
    Diagnostic,
    Outcome,
    Review,
    Verdict,
)
from arise.types.tasks import (
    EnvironmentSpec,
    Healthcheck,
    Step,
    Task,
)
from arise.types.trajectories import (
    FailureKind,
    FinishReason,
    HarnessReport,
    InjectedSkill,
    RolloutFailure,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

__all__ = [
    "Capability",
    "Criterion",
    "Diagnostic",
    "EnvironmentSpec",
    "FailureKind",
    "FinishReason",
    "HarnessReport",
    "Healthcheck",
    "InjectedSkill",
    "Iteration",
    "Outcome",
    "Review",
    "RolloutFailure",
    "SampledTask",
    "Step",
    "Task",
    "TokenRow",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "Verdict",
]
