"""The offline stand-in for the judge and the reflection model on the bundled suite.

Rules over observable behaviour answer the method's prompts in the method's text format, so that
the whole cycle runs without a language model: verdicts and findings come from commands and what
they printed, new pairs from the findings of a window, new skill texts from the failures. The
rules know five behaviours; a rubric about anything else is not applicable to them.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from arise.errors import ConfigError, JudgeError
from arise.llm.chat import ChatRequest, ChatResponse
from arise.rubrics.criteria_payloads import ExtractionPayload, MergePayload
from arise.rubrics.payloads import (
    EvaluationPayload,
    GenerationPayload,
    InitialAnalysisPayload,
    RefinementPayload,
)
from arise.tasks.shellworld.rules_judge import answer_analysis, answer_evaluation
from arise.tasks.shellworld.rules_online import answer_extraction, answer_merge
from arise.tasks.shellworld.rules_reflection import (
    GenerationLimits,
    answer_generation,
    answer_refinement,
)

log = logging.getLogger(__name__)


class RulesModel:
    """A `ChatModel` that answers by rules; the same payload always gives the same text.

    Args:
        role: `"judge"` answers initial analysis and rubric evaluation, `"reflection"` generation,
            refinement, and extraction and merge of the OnlineRubrics baseline.
        max_new_pairs_per_update: Most pairs that one generation proposes; reflection only.
        min_gap_share: Share of the records in which a behaviour is lacking, among those that
            tell, from which on it is worth a pair, in [0, 1]; reflection only.
        min_gap_records: Fewest records in which it is lacking; reflection only.

    Raises:
        ConfigError: The role is not known, or a limit is missing, out of range, or given to a
            judge.

    Example:
        >>> RulesModel(role="judge").name
        'rules'
    """

    name = "rules"

    def __init__(
        self,
        *,
        role: Literal["judge", "reflection"],
        max_new_pairs_per_update: int | None = None,
        min_gap_share: float | None = None,
        min_gap_records: int | None = None,
    ) -> None:
        limits: dict[str, Any] = {
            "max_new_pairs_per_update": max_new_pairs_per_update,
            "min_gap_share": min_gap_share,
            "min_gap_records": min_gap_records,
        }
        if role not in ("judge", "reflection"):
            raise ConfigError(
                f"role of the offline stand-in is {role!r}, allowed: judge (key judge.role), "
                "reflection (key reflection.role)"
            )
        given = [key for key, value in limits.items() if value is not None]
        if role == "judge" and given:
            raise ConfigError(
                f"judge.{given[0]} has no meaning for a judge; set reflection.{given[0]}"
            )
        self.role = role
        self._limits = GenerationLimits(**limits) if role == "reflection" else None
        self._is_announced = False

    async def start(self) -> None:
        """Say once that no language model is at work."""
        if not self._is_announced:
            self._is_announced = True
            log.warning(
                "%s=rules is an offline stand-in: rules over the observable behaviour of the "
                "bundled suite's traces, not a language model; %s=openai takes one",
                self.role,
                self.role,
            )

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request from its typed payload; its messages are not read.

        Raises:
            JudgeError: This role has no rules for such a request, or no rule for its rubric.
        """
        return ChatResponse(text=self._answer(request))

    def _answer(self, request: ChatRequest) -> str:
        payload = request.payload
        if self._limits is None:
            if isinstance(payload, InitialAnalysisPayload):
                return answer_analysis(payload)
            if isinstance(payload, EvaluationPayload):
                return answer_evaluation(payload)
        else:
            if isinstance(payload, GenerationPayload):
                return answer_generation(payload, self._limits)
            if isinstance(payload, RefinementPayload):
                return answer_refinement(payload)
            if isinstance(payload, ExtractionPayload):
                return answer_extraction(payload)
            if isinstance(payload, MergePayload):
                return answer_merge(payload)
        raise JudgeError(
            f"the offline stand-in {self.role}=rules has no rules for '{request.purpose}' with "
            f"payload {type(payload).__name__}; use {self.role}=openai"
        )

    async def stop(self) -> None:
        """Nothing to release."""
