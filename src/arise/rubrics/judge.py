"""The judge: one trajectory in, one `Review` out; trouble makes verdicts invalid, never fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from arise.errors import ConfigError, JudgeError, one_line
from arise.llm.chat import ChatModel, ChatRequest, Purpose
from arise.rubrics.judge_metrics import JudgeMetrics
from arise.rubrics.pair import RubricSkillPair
from arise.rubrics.parsing import JudgeAnswer, parse_judge_answer, problems_line
from arise.rubrics.payloads import (
    EvaluationPayload,
    InitialAnalysisPayload,
    RubricView,
    TrajectoryView,
)
from arise.rubrics.prompting import Prompts, rubric_views
from arise.rubrics.trace import shorten, trajectory_view
from arise.types import Review, Task, Trajectory

CHARS_PER_TOKEN = 4


class Judge:
    """Asks the judge model about trajectories.

    With an empty pool it asks for diagnostics only. Else it asks for one verdict per rubric, in
    requests of at most `rubrics_per_request` rubrics; the first one lists the complete pool and
    asks for diagnostics too.

    Args:
        model: Answers the requests; also runs the initial analysis.
        prompts: The prompt files.
        max_concurrency: Most requests in flight; key `rubrics.judge_concurrency`.
        rubrics_per_request: Most rubrics in one request, `None` for all in one; key
            `rubrics.rubrics_per_request`.
        trace_budget_tokens: Longest trace in a prompt, at `CHARS_PER_TOKEN` characters a token;
            key `rubrics.trace_budget_tokens`.

    Raises:
        ConfigError: A limit is below 1.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        prompts: Prompts,
        max_concurrency: int,
        rubrics_per_request: int | None,
        trace_budget_tokens: int,
    ) -> None:
        limits = {
            "judge_concurrency": max_concurrency,
            "rubrics_per_request": 1 if rubrics_per_request is None else rubrics_per_request,
            "trace_budget_tokens": trace_budget_tokens,
        }
        for name, value in limits.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"rubrics.{name} must be an integer >= 1, got {value!r}")
        self.model = model
        self.metrics = JudgeMetrics()
        self._prompts = prompts
        self._semaphore = asyncio.Semaphore(max_concurrency)
        self._rubrics_per_request = rubrics_per_request
        self._trace_budget_chars = trace_budget_tokens * CHARS_PER_TOKEN

    def prompt_hash(self, pairs: Sequence[RubricSkillPair]) -> str:
        """Hash of the prompt file by which a trajectory is reviewed under this pool."""
        purpose = Purpose.RUBRIC_EVALUATION if pairs else Purpose.INITIAL_ANALYSIS
        return self._prompts.sha256(purpose)

    def pop_metrics(self) -> dict[str, float]:
        """The scalars `judge/*` since the last call, by TensorBoard name."""
        metrics, self.metrics = self.metrics, JudgeMetrics()
        return metrics.scalars()

    async def review(
        self, task: Task, trajectory: Trajectory, pairs: Sequence[RubricSkillPair]
    ) -> Review:
        """Judge one trajectory by the pool `pairs`.

        Args:
            task: The trajectory's task.
            trajectory: What to judge.
            pairs: The pool when judging of the group started; may be empty.

        Returns:
            The verdicts that were valid, the diagnostics, and in `error` what went wrong. A model
            that fails or answers nonsense never raises here and never makes a fail.
        """
        view = shorten(trajectory_view(task, trajectory), self._trace_budget_chars)
        self.metrics.num_reviews += 1
        self.metrics.num_shortened += bool(view.note)
        rubrics = rubric_views(sorted(pairs, key=lambda pair: pair.id))
        if not rubrics:
            payload = InitialAnalysisPayload(trajectory=view)
            request = self._prompts.initial_analysis(payload)
            return _merge((), [await self._ask(request, (), (), asks_diagnostics=True)])
        size = self._rubrics_per_request or len(rubrics)
        batches = [rubrics[start : start + size] for start in range(0, len(rubrics), size)]
        parts = await asyncio.gather(
            *(
                self._evaluate(view, batch, rubrics, asks_diagnostics=number == 0)
                for number, batch in enumerate(batches)
            )
        )
        return _merge(tuple(rubric.id for rubric in rubrics), parts)

    async def _evaluate(
        self,
        view: TrajectoryView,
        batch: tuple[RubricView, ...],
        pool: tuple[RubricView, ...],
        *,
        asks_diagnostics: bool,
    ) -> tuple[JudgeAnswer, str]:
        payload = EvaluationPayload(
            trajectory=view,
            rubrics=batch,
            pool=pool if asks_diagnostics else (),
            asks_diagnostics=asks_diagnostics,
        )
        request = self._prompts.evaluation(payload)
        return await self._ask(
            request,
            tuple(rubric.id for rubric in batch),
            tuple(rubric.id for rubric in pool),
            asks_diagnostics=asks_diagnostics,
        )

    async def _ask(
        self,
        request: ChatRequest,
        asked_ids: tuple[int, ...],
        pool_ids: tuple[int, ...],
        *,
        asks_diagnostics: bool,
    ) -> tuple[JudgeAnswer, str]:
        """One request's answer and what was wrong with it."""
        async with self._semaphore:
            self.metrics.num_calls += 1
            started = time.perf_counter()
            try:
                response = await self.model.complete(request)
            except JudgeError as error:
                self.metrics.num_failures += 1
                self.metrics.add_verdicts(num_asked=len(asked_ids), num_valid=0)
                return JudgeAnswer(problems={}), one_line(error)
            finally:
                self.metrics.latencies_s.append(time.perf_counter() - started)
        answer = parse_judge_answer(response.text, asked_ids=asked_ids, pool_ids=pool_ids)
        self.metrics.add_response(response)
        self.metrics.add_verdicts(num_asked=len(asked_ids), num_valid=len(answer.verdicts))
        self.metrics.problems.update(answer.problems)
        given = {verdict.pair_id for verdict in answer.verdicts}
        trouble = problems_line(answer.problems, [id_ for id_ in asked_ids if id_ not in given])
        if asks_diagnostics and not answer.has_diagnostics:
            self.metrics.problems["no_diagnostics"] += 1
            trouble = "; ".join(filter(None, (trouble, "no diagnostics")))
        return answer, trouble


def _merge(judged_ids: tuple[int, ...], parts: Sequence[tuple[JudgeAnswer, str]]) -> Review:
    """The review from the answers to all requests of one trajectory, in request order."""
    verdicts = [verdict for answer, _ in parts for verdict in answer.verdicts]
    return Review(
        judged_pair_ids=judged_ids,
        verdicts=tuple(sorted(verdicts, key=lambda verdict: verdict.pair_id)),
        diagnostics=tuple(entry for answer, _ in parts for entry in answer.diagnostics),
        error="; ".join(error for _, error in parts if error),
    )
