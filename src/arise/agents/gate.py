"""Collects the model calls of many episodes into batches.

In *lockstep* a batch is dispatched only when every live episode waits for one, sorted by session:
what a batch holds then never depends on how fast a sandbox was, which is what makes a run
repeatable bit for bit. Otherwise a batch is dispatched whenever the engine is free. An engine that
batches by itself gets every call at once.
"""

from __future__ import annotations

import asyncio
import logging

from arise.errors import InferenceError
from arise.inference.base import Completion, Engine, GenerationRequest

Session = tuple[int, int]

log = logging.getLogger(__name__)


class GenerationGate:
    """The one way from episodes to the engine.

    Args:
        engine: Plays the policy.
        lockstep: Whether to wait for every live episode before each batch; not for an engine that
            batches by itself.

    An episode is *live* between `enter` and `leave`. Admitting an episode while another one leaves
    keeps lockstep exact, because the newcomer is awaited from that moment on.

    Attributes:
        num_batches: Batches that were sent to the engine so far.
    """

    def __init__(self, engine: Engine, *, lockstep: bool) -> None:
        self._engine = engine
        self._lockstep = lockstep
        self._live: set[Session] = set()
        self._waiting: dict[Session, tuple[GenerationRequest, asyncio.Future[Completion]]] = {}
        self._batch: asyncio.Task[None] | None = None
        self._asked: list[asyncio.Future[Completion]] = []
        self.num_batches = 0

    @property
    def is_at_rest(self) -> bool:
        """Whether every live episode waits for a batch that was not sent yet."""
        return self._batch is None and self._waiting.keys() >= self._live

    def enter(self, session: Session) -> None:
        """Count an episode as live."""
        self._live.add(session)

    def leave(self, session: Session) -> None:
        """The episode makes no more calls."""
        self._live.discard(session)
        self._dispatch()

    def wake(self) -> None:
        """Look again whether a batch may be sent: what forbade it is over."""
        self._dispatch()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Answer one call, batched with those of other episodes.

        A batch that nobody waits for any more, because its calls were cancelled, is ended.

        Raises:
            InferenceError: The engine could not answer this call.
        """
        if self._engine.is_concurrent:
            (answer,) = await self._ask([request])
            if isinstance(answer, InferenceError):
                raise answer
            return answer
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[request.session] = (request, future)
        self._dispatch()
        try:
            return await future
        finally:
            self._waiting.pop(request.session, None)
            if self._asked and all(asked.cancelled() for asked in self._asked):
                assert self._batch is not None
                self._batch.cancel()

    def _dispatch(self) -> None:
        if self._batch is None and self._is_due():
            self._batch = asyncio.get_running_loop().create_task(self._run_batch())

    def _may_send(self) -> bool:
        """Whether a batch may be sent now, if its calls are there; asked before each one."""
        return True

    def _note(self, requests: list[GenerationRequest]) -> None:
        """Calls that are sent to the engine now."""

    def _is_due(self) -> bool:
        if not self._may_send():
            return False
        return bool(self._waiting) and (not self._lockstep or self._waiting.keys() >= self._live)

    async def _run_batch(self) -> None:
        # One turn of the loop lets every episode that is ready join this batch.
        await asyncio.sleep(0)
        if not self._is_due():  # episodes were cancelled or admitted meanwhile
            self._batch = None
            return
        calls = [self._waiting[session] for session in sorted(self._waiting)]
        self._waiting.clear()
        self._asked = [future for _, future in calls]
        answers: list[Completion | InferenceError] = []
        try:
            answers = await self._ask([request for request, _ in calls])
        finally:
            self._batch, self._asked = None, []
            # Nobody may wait for ever, not even if this batch was cancelled.
            missing = [InferenceError("the engine was stopped")] * (len(calls) - len(answers))
            for (_, future), answer in zip(calls, [*answers, *missing], strict=True):
                if future.done():
                    continue
                if isinstance(answer, InferenceError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
            self._dispatch()

    async def _ask(self, requests: list[GenerationRequest]) -> list[Completion | InferenceError]:
        self.num_batches += 1
        self._note(requests)
        try:
            answers = await self._engine.generate(requests)
        except InferenceError as error:
            return [error] * len(requests)
        except Exception as error:
            log.exception("the engine failed unexpectedly")
            return [InferenceError(f"the engine failed: {error!r}")] * len(requests)
        if len(answers) != len(requests):
            wrong = InferenceError(f"asked for {len(requests)} answers, got {len(answers)}")
            return [wrong] * len(requests)
        return answers
