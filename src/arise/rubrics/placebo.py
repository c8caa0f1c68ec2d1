"""The placebo control: verdicts that say as much as ever, but about the wrong trajectories.

Within a group each rubric's valid verdicts change places among the trajectories that have one. So
base rates, pass rates of windows and the size of the advantages stay; what is lost is which
trajectory earned which verdict.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

from arise.types import Review, Verdict


def shuffled_reviews(
    reviews: Sequence[Review | None], *, seed: int, iteration: int, task_id: str
) -> list[Review | None]:
    """The reviews of one group with each rubric's verdicts permuted, rubric by rubric.

    Reasons go with their verdicts; diagnostics stay with their trajectory. A trajectory without a
    valid verdict for a rubric has none afterwards either.

    Args:
        reviews: In slot order; `None` for a lost rollout.
        seed: The run's seed; with iteration and task it decides the permutation.
        iteration: k.
        task_id: Task of the group.
    """
    verdicts: list[dict[int, Verdict]] = [
        {verdict.pair_id: verdict for verdict in review.verdicts} if review else {}
        for review in reviews
    ]
    for pair_id in sorted({pair_id for own in verdicts for pair_id in own}):
        slots = [slot for slot, own in enumerate(verdicts) if pair_id in own]
        parts = repr((seed, "placebo", iteration, task_id, pair_id)).encode()
        rng = random.Random(hashlib.blake2b(parts, digest_size=8).digest())
        order = rng.sample(slots, len(slots))
        moved = {slot: verdicts[origin][pair_id] for slot, origin in zip(slots, order, strict=True)}
        for slot, verdict in moved.items():
            verdicts[slot][pair_id] = verdict
    return [
        replace(review, verdicts=tuple(own[pair_id] for pair_id in sorted(own))) if review else None
        for review, own in zip(reviews, verdicts, strict=True)
    ]
