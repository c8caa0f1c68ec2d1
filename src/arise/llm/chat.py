"""Chat models behind the judge and the reflection: messages in, text out.

The typed `payload` lets an offline model answer by rules over the same data that the prompt
shows; its answer is *text* and goes through the same parser as a model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from arise.llm.budget import CallBudget


class Purpose(StrEnum):
    """Which of the method's prompts a request is (Appendix B.6)."""

    INITIAL_ANALYSIS = "initial_analysis"
    RUBRIC_EVALUATION = "rubric_evaluation"
    GENERATION = "generation"
    REFINEMENT = "refinement"
    ANNOTATION = "annotation"


class CriteriaPurpose(StrEnum):
    """Which prompt of the OnlineRubrics baseline a request is."""

    EXTRACTION = "criteria_extraction"
    MERGE = "criteria_merge"
    REFERENCE = "reference_answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One chat call.

    Attributes:
        purpose: Which prompt this is.
        messages: Role and content of each message.
        payload: The typed data that the prompt was rendered from.
        max_tokens: Most tokens to answer with; `None` leaves it to the endpoint.
        budget: What every further try takes a call from; whoever asks takes the first. `None`
            if nobody counts.
    """

    purpose: Purpose | CriteriaPurpose
    messages: tuple[Mapping[str, str], ...]
    payload: Any = None
    max_tokens: int | None = None
    budget: CallBudget | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResponse:
    """An answer's text, with the tokens it cost (0 where unknown)."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)


class ChatModel(Protocol):
    """Answers chat requests."""

    name: str

    async def start(self) -> None:
        """Check that the model can be reached; raise `ConfigError` if not."""

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request.

        Raises:
            JudgeError: No answer could be had within the configured tries.
        """

    async def stop(self) -> None:
        """Release connections."""
