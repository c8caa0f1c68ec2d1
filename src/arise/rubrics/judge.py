"""The judge: one trajectory in, one `Review` out; trouble makes verdicts invalid, never fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from arise.errors import ConfigError, JudgeError, one_line
from arise.llm.budget import CallBudget
from arise.llm.chat import ChatModel, ChatRequest, Purpose
from arise.llm.usage import TokenPrices, Usage
from arise.rubrics.judge_metrics import JudgeMetrics
from arise.rubrics.known_answers import KnownAnswers
from arise.rubrics.outage import OutageWatch
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
from arise.rubrics.verdict_cache import VerdictCache
from arise.types import Review, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """How the judge is asked; the keys of the same names in `configs/judge/`.

    Attributes:
        max_concurrency: Most requests in flight.
        rubrics_per_request: Most rubrics in one request; `None` for all in one.
        trace_budget_tokens: Longest trace in a prompt, in estimated tokens.
        max_calls_per_iteration: Most calls to the endpoint, retries included; `None` for no limit.
            Verdicts that would need more are invalid.
        on_outage: See `OutageWatch`.
        give_up_after: See `OutageWatch`.
        alarm_after: See `OutageWatch`.
        prices: For the cost; `None` if they are not known.

    Raises:
        ConfigError: A limit is below 1.
    """

    max_concurrency: int
    rubrics_per_request: int | None
    trace_budget_tokens: int
    max_calls_per_iteration: int | None = None
    on_outage: str = "continue"
    give_up_after: int = 32
    alarm_after: int = 3
    prices: TokenPrices | None = None

    def __post_init__(self) -> None:
        for name in ("rubrics_per_request", "max_calls_per_iteration"):
            self._require(name, 1 if getattr(self, name) is None else getattr(self, name))
        for name in ("max_concurrency", "trace_budget_tokens"):
            self._require(name, getattr(self, name))

    def _require(self, name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"judge.{name} must be an integer >= 1, got {value!r}")


class Judge:
    """Asks the judge model about trajectories.

    With an empty pool it asks for diagnostics only. Else it asks for one verdict per rubric, in
    requests of at most `rubrics_per_request` rubrics; the first one lists the complete pool and
    asks for diagnostics too. What the cache knows is not asked again.

    Args:
        model: Answers the requests; also runs the initial analysis.
        prompts: The prompt files.
        options: Limits and prices.
        cache: Verdicts of earlier requests; `None` asks every time.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        prompts: Prompts,
        options: JudgeOptions,
        cache: VerdictCache | None = None,
    ) -> None:
        self.model = model
        self.metrics = JudgeMetrics(usage=Usage(prices=options.prices))
        self._prompts = prompts
        self._options = options
        self._cache = cache
        self._semaphore = asyncio.Semaphore(options.max_concurrency)
        self._budget = CallBudget(options.max_calls_per_iteration)
        self._outage = OutageWatch(
            on_outage=options.on_outage,
            give_up_after=options.give_up_after,
            alarm_after=options.alarm_after,
        )
        # Equal trajectories take turns, so that the second finds what the first was told.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def pop_metrics(self) -> dict[str, float]:
        """The scalars `judge/*` of an iteration that is over, by TensorBoard name.

        `judge/lost_iterations` counts iterations in a row in which the judge was asked and gave
        nothing usable; `judge/alarm` is 1 if they are too many (see `OutageWatch`).
        """
        metrics, self.metrics = (
            self.metrics,
            JudgeMetrics(usage=Usage(prices=self._options.prices)),
        )
        metrics.num_calls = self._budget.num_taken
        self._budget.restart()
        if metrics.has_asked:
            self._outage.end_iteration(is_usable=metrics.is_usable)
        return metrics.scalars() | {
            "judge/lost_iterations": float(self._outage.num_lost_iterations),
            "judge/alarm": float(self._outage.is_alarm),
        }

    def require_judge(self) -> None:
        """End the run if the judge has been away for long and `judge.on_outage` is `stop`.

        Raises:
            JudgeError: That is so; call after `pop_metrics`.
        """
        self._outage.require_judge(self.model.name)

    async def stop(self) -> None:
        """Let go of the cache's file; safe to repeat."""
        if self._cache is not None:
            self._cache.close()

    async def review(
        self,
        task: Task,
        trajectory: Trajectory,
        pairs: Sequence[RubricSkillPair],
        *,
        asks_diagnostics: bool = True,
    ) -> Review:
        """Judge one trajectory by the pool `pairs`.

        Args:
            task: The trajectory's task.
            trajectory: What to judge.
            pairs: The pool when judging of the group started; may be empty.
            asks_diagnostics: Whether findings are wanted beside the verdicts.

        Returns:
            The verdicts that were valid, the diagnostics, and in `error` what went wrong. A model
            that fails or answers nonsense never raises here and never makes a fail.
        """
        view = shorten(trajectory_view(task, trajectory), self._options.trace_budget_tokens)
        self.metrics.num_reviews += 1
        self.metrics.num_shortened += bool(view.note)
        rubrics = rubric_views(sorted(pairs, key=lambda pair: pair.id))
        purpose = Purpose.RUBRIC_EVALUATION if rubrics else Purpose.INITIAL_ANALYSIS
        answers = KnownAnswers(
            cache=self._cache,
            view=view,
            pool=rubrics,
            prompt_hash=self._prompts.sha256(purpose),
            model=self.model.name,
        )
        turn = asyncio.Lock()
        if self._cache is not None:
            turn = self._turns.setdefault(answers.trajectory, turn)
        async with turn:
            review = await self._review(view, rubrics, answers, asks_diagnostics)
        return replace(
            review,
            prompt_hash=answers.prompt_hash,
            model=self.model.name,
            shortening=view.note,
        )

    async def _review(
        self,
        view: TrajectoryView,
        rubrics: tuple[RubricView, ...],
        answers: KnownAnswers,
        wants_diagnostics: bool,
    ) -> Review:
        """Ask for what is not known yet, and put everything together."""
        known, findings = answers.look_up()
        self.metrics.add_cached(len(known))
        unknown = tuple(rubric for rubric in rubrics if rubric.id not in known)
        asks_diagnostics = wants_diagnostics and findings is None
        parts: list[tuple[JudgeAnswer, str]] = []
        if not rubrics and asks_diagnostics:
            payload = InitialAnalysisPayload(trajectory=view)
            request = self._prompts.initial_analysis(payload)
            parts = [await self._ask(request, (), (), asks_diagnostics=True)]
        elif unknown or asks_diagnostics:
            size = self._options.rubrics_per_request or max(1, len(unknown))
            batches = [unknown[start : start + size] for start in range(0, len(unknown), size)]
            parts = await asyncio.gather(
                *(
                    self._evaluate(view, batch, rubrics, asks_diagnostics and number == 0)
                    for number, batch in enumerate(batches or [()])
                )
            )
        answers.remember([answer for answer, _ in parts])
        verdicts = [*known.values(), *(v for answer, _ in parts for v in answer.verdicts)]
        new_findings = tuple(entry for answer, _ in parts for entry in answer.diagnostics)
        return Review(
            judged_pair_ids=tuple(rubric.id for rubric in rubrics),
            verdicts=tuple(sorted(verdicts, key=lambda verdict: verdict.pair_id)),
            diagnostics=new_findings if findings is None else findings,
            error="; ".join(error for _, error in parts if error),
        )

    async def _evaluate(
        self,
        view: TrajectoryView,
        batch: tuple[RubricView, ...],
        pool: tuple[RubricView, ...],
        asks_diagnostics: bool,
    ) -> tuple[JudgeAnswer, str]:
        payload = EvaluationPayload(
            trajectory=view,
            rubrics=batch,
            pool=pool if asks_diagnostics else (),
            asks_diagnostics=asks_diagnostics,
        )
        return await self._ask(
            self._prompts.evaluation(payload),
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
        try:
            text = await self._complete(request)
        except JudgeError as error:
            self.metrics.add_verdicts(num_asked=len(asked_ids), num_valid=0)
            return JudgeAnswer(problems={}), one_line(error)
        answer = parse_judge_answer(text, asked_ids=asked_ids, pool_ids=pool_ids)
        self.metrics.add_verdicts(num_asked=len(asked_ids), num_valid=len(answer.verdicts))
        self.metrics.problems.update(answer.problems)
        given = {verdict.pair_id for verdict in answer.verdicts}
        trouble = problems_line(answer.problems, [id_ for id_ in asked_ids if id_ not in given])
        if asks_diagnostics:
            self.metrics.num_findings += answer.has_diagnostics
            if not answer.has_diagnostics:
                self.metrics.problems["no_diagnostics"] += 1
                trouble = "; ".join(filter(None, (trouble, "no diagnostics")))
        return answer, trouble

    async def _complete(self, request: ChatRequest) -> str:
        """The answer's text, if the budget and the state of the judge allow to ask for it.

        Raises:
            JudgeError: There is no answer.
        """
        async with self._semaphore:
            if self._outage.gives_up:
                self.metrics.num_skipped += 1
                raise JudgeError(
                    f"not asked: {self.model.name} left {self._options.give_up_after} requests in "
                    "a row without an answer (judge.give_up_after)"
                )
            if not self._budget.take():
                self.metrics.num_skipped += 1
                raise JudgeError(
                    f"not asked: all {self._options.max_calls_per_iteration} calls of this "
                    "iteration are spent (judge.max_calls_per_iteration)"
                )
            started = time.perf_counter()
            try:
                response = await self.model.complete(replace(request, budget=self._budget))
            except JudgeError:
                self.metrics.usage.failed(time.perf_counter() - started)
                self._outage.no_answer()
                raise
            self.metrics.usage.answered(response, time.perf_counter() - started)
            self._outage.answered()
            return response.text
