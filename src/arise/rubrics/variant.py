"""What a baseline or control does otherwise than the method, for the callbacks."""

from __future__ import annotations

from dataclasses import dataclass

from arise.rubrics.online import OnlineRubrics
from arise.rubrics.scaffold import Scaffold


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Parts that only some experiments have; without arguments it is the method itself.

    Attributes:
        scaffold: What each rollout is shown instead of the active skills (RuscaRL).
        strips_scaffold: Whether rows are trained on prompts without it.
        online: Elicits and grades criteria in place of the pool's judge (OnlineRubrics).
        shuffle_seed: Seed of shuffled verdicts (placebo); `None` leaves them as judged.
    """

    scaffold: Scaffold | None = None
    strips_scaffold: bool = False
    online: OnlineRubrics | None = None
    shuffle_seed: int | None = None
