"""Asking for criteria (OnlineRubrics, arXiv 2510.07284): differences, with a quote, merged."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arise.errors import JudgeError, ReflectionError, one_line
from arise.llm.chat import ChatModel, ChatRequest, CriteriaPurpose
from arise.llm.prompts import read_prompt
from arise.llm.text import clean_text, dump_json, dump_jsonl, without_thinking
from arise.llm.usage import TokenPrices, Usage
from arise.rubrics.criteria_payloads import ExtractionPayload, MergePayload, ReferencePayload
from arise.rubrics.lenient_json import read_objects
from arise.rubrics.payloads import TrajectoryView
from arise.rubrics.proposals import fold
from arise.rubrics.trace import step_lines
from arise.types import Criterion

BUILT_IN = Path(__file__).parent / "prompts" / "online"
MAX_TEXT_CHARS = 600


class Elicitation:
    """Asks the reflection model for criteria of one task at a time.

    Args:
        model: Answers the requests.
        prompts_dir: Folder whose subfolder `online` may replace the built-in prompt files; `None`
            for those. Key `rubrics.prompts_dir`.
        prices: For the cost; `None` if they are not known.

    Attributes:
        problems: What was wrong with answers, by kind, since the last `pop_metrics`.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        prompts_dir: str | Path | None = None,
        prices: TokenPrices | None = None,
    ) -> None:
        own = None if prompts_dir is None else Path(prompts_dir) / "online"
        folder = own if own is not None and own.is_dir() else BUILT_IN
        self._prompts = {purpose: read_prompt(purpose, folder) for purpose in CriteriaPurpose}
        self._model = model
        self._prices = prices
        self._usage = Usage(prices=prices)
        self.problems: Counter[str] = Counter()

    async def extract(self, payload: ExtractionPayload) -> tuple[Criterion, ...]:
        """Criteria from the differences of one pair; ids are not assigned yet.

        A criterion whose quote stands in neither trace is dropped and counted.

        Raises:
            ReflectionError: No answer, or one without the requested form.
        """
        values = {
            "task": dump_json({"instruction": payload.current.instruction}),
            "current": dump_jsonl(step_lines(payload.current)),
            "reference": dump_jsonl(step_lines(payload.reference)),
            "covered": dump_jsonl(payload.covered),
        }
        text = await self._ask(CriteriaPurpose.EXTRACTION, payload, values)
        sources = [_all_text(view) for view in (payload.current, payload.reference)]
        return self._read(text, sources)

    async def merge(self, payload: MergePayload) -> tuple[Criterion, ...]:
        """The criteria of all pairs without repetitions, numbered from 1.

        Raises:
            ReflectionError: No answer, or one without the requested form.
        """
        values = {
            "task": dump_json({"instruction": payload.instruction}),
            "criteria": dump_jsonl(
                [
                    {"quote": entry.quote, "criterion": entry.text, "weight": entry.weight}
                    for entry in payload.criteria
                ]
            ),
            "max_criteria": payload.max_criteria,
        }
        text = await self._ask(CriteriaPurpose.MERGE, payload, values)
        merged = self._read(text, [fold(entry.quote) for entry in payload.criteria])
        return numbered(merged, payload.max_criteria)

    async def answer(self, payload: ReferencePayload) -> str:
        """The reflection model's own answer to a task.

        Raises:
            ReflectionError: There is none.
        """
        values = {"task": dump_json({"instruction": payload.instruction})}
        text = without_thinking(await self._ask(CriteriaPurpose.REFERENCE, payload, values))
        if not text.strip():
            raise ReflectionError("the reference answer is empty")
        return clean_text(text)

    def pop_metrics(self) -> dict[str, float]:
        """`reflection/*` and `criteria/*` scalars since the last call."""
        usage, self._usage = self._usage, Usage(prices=self._prices)
        problems, self.problems = self.problems, Counter()
        names = ("unreadable", "not_grounded")
        return usage.scalars("reflection") | {
            f"criteria/{name}": float(problems[name]) for name in names
        }

    def _read(self, text: str, sources: Sequence[str]) -> tuple[Criterion, ...]:
        """Criteria of an answer whose quotes stand in one of `sources` (folded texts)."""
        entries: list[Any] = []
        is_answer = False
        for found in read_objects(without_thinking(text))[0]:
            if isinstance(found.get("criteria"), list):
                is_answer = True
                entries += found["criteria"]
            elif "criterion" in found:
                is_answer = True
                entries.append(found)
        if not is_answer:
            raise ReflectionError(f"no criteria in the answer: {text[:200]!r}")
        criteria = []
        for entry in entries:
            criterion = _criterion(entry)
            if criterion is None:
                self.problems["unreadable"] += 1
            elif not any(fold(criterion.quote) in source for source in sources):
                self.problems["not_grounded"] += 1
            else:
                criteria.append(criterion)
        return tuple(criteria)

    async def _ask(self, purpose: CriteriaPurpose, payload: Any, values: Mapping[str, Any]) -> str:
        request = ChatRequest(
            purpose=purpose, messages=self._prompts[purpose].render(values), payload=payload
        )
        started = time.perf_counter()
        try:
            response = await self._model.complete(request)
        except JudgeError as error:
            self._usage.failed(time.perf_counter() - started)
            raise ReflectionError(one_line(error)) from error
        self._usage.answered(response, time.perf_counter() - started)
        return response.text


def numbered(criteria: Sequence[Criterion], limit: int) -> tuple[Criterion, ...]:
    """The first `limit` criteria with different texts, numbered from 1."""
    distinct = {fold(entry.text): entry for entry in reversed(criteria)}
    kept = [entry for entry in criteria if distinct[fold(entry.text)] is entry][:limit]
    return tuple(
        Criterion(id=number, text=entry.text, weight=entry.weight, quote=entry.quote)
        for number, entry in enumerate(kept, start=1)
    )


def _criterion(entry: Any) -> Criterion | None:
    if not isinstance(entry, dict):
        return None
    text, quote, weight = (entry.get(key) for key in ("criterion", "quote", "weight"))
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not (isinstance(text, str) and isinstance(quote, str) and is_number):
        return None
    text, quote = clean_text(text).strip(), clean_text(quote).strip()
    if not (text and quote and len(text) <= MAX_TEXT_CHARS):
        return None
    assert isinstance(weight, int | float)
    if not math.isfinite(weight) or weight == 0:
        return None
    return Criterion(id=0, text=text, weight=max(-5.0, min(5.0, float(weight))), quote=quote)


def _all_text(view: TrajectoryView) -> str:
    """Everything a quote may come from, folded."""
    parts = (part for step in view.steps for part in (step.text, step.command, step.observation))
    return fold("\n".join(part for part in parts if part))
