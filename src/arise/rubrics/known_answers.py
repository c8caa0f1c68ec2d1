"""What the cache knows about one trajectory under one pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from arise.rubrics.parsing import JudgeAnswer
from arise.rubrics.payloads import RubricView, TrajectoryView
from arise.rubrics.verdict_cache import (
    VerdictCache,
    findings_key,
    trajectory_digest,
    verdict_key,
)
from arise.types import Diagnostic, Outcome, Verdict


class KnownAnswers:
    """Verdicts and findings of one review that need not be asked for again.

    Args:
        cache: Where they are kept; `None` knows nothing and keeps nothing.
        view: The trajectory as the judge sees it.
        pool: The criteria.
        prompt_hash: Hash of the prompt file by which the trajectory is reviewed.
        model: Name of the judge model.

    Attributes:
        trajectory: Digest of the view.
        prompt_hash: As given.
    """

    def __init__(
        self,
        *,
        cache: VerdictCache | None,
        view: TrajectoryView,
        pool: tuple[RubricView, ...],
        prompt_hash: str,
        model: str,
    ) -> None:
        self.trajectory = trajectory_digest(view)
        self.prompt_hash = prompt_hash
        self._cache = cache
        names = {"prompt_hash": prompt_hash, "model": model}
        self._verdict_keys = {
            rubric.id: verdict_key(rubric, self.trajectory, **names) for rubric in pool
        }
        self._findings_key = findings_key(pool, self.trajectory, **names)

    def look_up(self) -> tuple[dict[int, Verdict], tuple[Diagnostic, ...] | None]:
        """Known verdicts by pair id, and the findings; `None` if those must be asked for."""
        if self._cache is None:
            return {}, None
        found = self._cache.get([*self._verdict_keys.values(), self._findings_key])
        verdicts = {
            pair_id: Verdict(
                pair_id=pair_id,
                outcome=Outcome(found[key]["outcome"]),
                reason=found[key]["reason"],
            )
            for pair_id, key in self._verdict_keys.items()
            if key in found
        }
        findings = found.get(self._findings_key)
        if findings is None:
            return verdicts, None
        return verdicts, tuple(Diagnostic(**entry) for entry in findings)

    def remember(self, answers: Iterable[JudgeAnswer]) -> None:
        """Keep what was valid in new answers."""
        if self._cache is None:
            return
        entries: dict[str, Any] = {}
        for answer in answers:
            for verdict in answer.verdicts:
                entries[self._verdict_keys[verdict.pair_id]] = {
                    "outcome": verdict.outcome.value,
                    "reason": verdict.reason,
                }
            if answer.has_diagnostics:
                entries[self._findings_key] = [asdict(entry) for entry in answer.diagnostics]
        self._cache.put(entries)
