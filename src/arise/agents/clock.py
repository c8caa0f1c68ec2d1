"""An agent's time limit, which stops while a lockstep batch is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from arise.inference.base import Completion, GenerationRequest

Generate = Callable[[GenerationRequest], Awaitable[Completion]]


class AgentClock:
    """Wall-clock limit of one episode.

    In lockstep a model call waits for every other episode, so its duration says how busy the
    machine is, not how slow this agent is: counting it would end episodes by chance, and a run
    would no longer repeat bit for bit. There the clock stops during model calls.

    Args:
        counts_model_calls: Whether time in model calls counts.
    """

    def __init__(self, *, counts_model_calls: bool) -> None:
        self._counts_model_calls = counts_model_calls
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Like `asyncio.timeout`, with a clock that stops during `watched` calls."""
        async with asyncio.timeout(seconds) as self._timeout:
            try:
                yield self._timeout
            finally:
                self._timeout = None

    def watched(self, generate: Generate) -> Generate:
        """`generate`, during which the clock stops unless model calls count."""
        if self._counts_model_calls:
            return generate

        async def stopped(request: GenerationRequest) -> Completion:
            timeout = self._timeout
            if timeout is None or timeout.when() is None:
                return await generate(request)
            now = asyncio.get_running_loop().time
            left = (timeout.when() or 0.0) - now()
            timeout.reschedule(None)
            try:
                return await generate(request)
            finally:
                if not timeout.expired():
                    timeout.reschedule(now() + left)

        return stopped
