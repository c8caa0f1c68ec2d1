"""One asyncio event loop in one background thread, for a run's whole life.

Hooks run in the trainer's thread; they submit coroutines here and wait. Clients, sandboxes and
servers are bound to a loop, so there must be exactly one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

BACKGROUND = "background"
"""What names of tasks begin with that run beside the work that is waited for."""


class EventLoopThread:
    """A running event loop that takes work from other threads.

    Example:
        >>> loop = EventLoopThread()
        >>> loop.run(asyncio.sleep(0, result=3))
        3
        >>> loop.close()
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="arise-loop", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `coroutine` on the loop and return at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `coroutine` on the loop and wait for it; an interrupted wait cancels it.

        Raises:
            KeyboardInterrupt: The wait was interrupted; the coroutine was given time to clean up.
        """
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except (KeyboardInterrupt, SystemExit):
            future.cancel()
            self._wait_for_cancelled()
            raise

    def _wait_for_cancelled(self, patience_s: float = 10.0) -> None:
        """Let cancelled tasks run their `finally` blocks before the caller goes on."""

        async def settle() -> None:
            others = {
                task
                for task in asyncio.all_tasks() - {asyncio.current_task()}
                if not task.get_name().startswith(BACKGROUND)
            }
            if others:
                await asyncio.wait(others, timeout=patience_s)

        # A loop that does not answer must not hide the interrupt.
        with contextlib.suppress(TimeoutError):
            self.submit(settle()).result(patience_s + 5.0)

    def close(self) -> None:
        """Cancel what still runs, stop the loop and join its thread; safe to repeat."""
        if self._loop.is_closed():
            return

        async def cancel_all() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=10.0)
            await self._loop.shutdown_asyncgens()

        with contextlib.suppress(TimeoutError):
            self.submit(cancel_all()).result(15.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=15.0)
        if not self._thread.is_alive():  # else it ends with the process: it is a daemon
            self._loop.close()
