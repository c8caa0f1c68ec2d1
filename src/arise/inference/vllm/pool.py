"""Several servers: episodes stay where they are, load is even, dead ones are left and found again.

A server keeps the keys of an episode's earlier turns, so moving costs a prefill; nothing else is
lost, because every request carries the whole prompt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arise.errors import AriseError, InferenceError, one_line
from arise.inference.vllm.client import ServerClient, ServerGone

logger = logging.getLogger(__name__)

Session = tuple[int, int]
_LOOK_S = 0.2


class ServerLostError(InferenceError):
    """A server will not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How soon servers count as dead, and how long a run waits for one.

    Attributes:
        health_interval_s: How often every server is looked at, in seconds.
        dead_after_s: A server that gives no answer for so long is dead, in seconds.
        max_outage_s: How long requests wait while no server is there, in seconds.
    """

    health_interval_s: float
    dead_after_s: float
    max_outage_s: float


class ServerPool:
    """The servers of one run.

    Args:
        clients: At least one.
        patience: When a server counts as dead, and when the run does without all of them.
        welcome: Prepares a server that has come back, before it gets its first request; raises if
            it cannot be used.
        revive: Starts a dead server again; raises `ServerLostError` if it is not going to. `None`
            leaves that to whoever has started it.
    """

    def __init__(
        self,
        clients: Sequence[ServerClient],
        *,
        patience: Patience,
        welcome: Callable[[ServerClient], Awaitable[None]],
        revive: Callable[[ServerClient], Awaitable[None]] | None = None,
    ) -> None:
        self._clients = list(clients)
        self._dead: dict[str, str] = {}
        self._place: dict[Session, ServerClient] = {}
        self._load: Counter[str] = Counter()
        self._in_flight: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)
        self._patience = patience
        self._welcome = welcome
        self._revive = revive
        self._outage_since: float | None = None
        self._problem = ""
        self._watch: asyncio.Task[None] | None = None

    @property
    def alive(self) -> list[ServerClient]:
        """Servers in use."""
        return [client for client in self._clients if client.url not in self._dead]

    def require_alive(self) -> None:
        """Make sure that requests can be answered, now or soon.

        Raises:
            InferenceError: The last server was lost for good, or for longer than is waited.
        """
        if self._problem:
            raise InferenceError(self._problem)

    def start(self) -> None:
        """Begin looking at the servers: whether they live, and whether dead ones are back."""
        self._watch = asyncio.get_running_loop().create_task(self._look_at_all())

    async def close(self) -> None:
        """Stop looking."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None

    async def generate(self, session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request where the session is; if that server is gone, to another.

        Raises:
            InferenceError: No server is left, or the request was refused.
        """
        while True:
            await self._somebody()
            client = self.place(session)
            try:
                return await self._ask(client, body)
            except ServerGone as error:
                self.lose(client, error)

    async def _ask(self, client: ServerClient, body: Mapping[str, Any]) -> dict[str, Any]:
        """Until the answer comes or the server is lost, which may be long before a time limit."""
        call = asyncio.ensure_future(client.generate({**body, "model": client.model}))
        self._in_flight[client.url].add(call)
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if (task is not None and task.cancelling()) or client.url not in self._dead:
                call.cancel()
                raise
            raise ServerGone(self._dead[client.url]) from None
        finally:
            self._in_flight[client.url].discard(call)

    async def _somebody(self) -> None:
        """Wait for a server while there is none, as long as that is worth while."""
        while not self.alive and not self._problem:
            started = self._outage_since or time.monotonic()
            if time.monotonic() - started > self._patience.max_outage_s:
                limit = f"engine.max_outage_s = {self._patience.max_outage_s:g}"
                self._problem = f"{self._nobody()}; none came back in time ({limit})"
            await asyncio.sleep(_LOOK_S)
        self.require_alive()

    def _nobody(self) -> str:
        return f"no vLLM server is left: {'; '.join(self._dead.values())}"

    def place(self, session: Session) -> ServerClient:
        """The session's server, or for a new one the server with the fewest sessions.

        Raises:
            InferenceError: No server is left.
        """
        client = self._place.get(session)
        if client is not None and client.url not in self._dead:
            return client
        alive = self.alive
        if not alive:
            raise InferenceError(self._nobody())
        if client is not None:
            self._load[client.url] -= 1
        chosen = min(alive, key=lambda other: self._load[other.url])
        self._place[session] = chosen
        self._load[chosen.url] += 1
        return chosen

    def release(self, session: Session) -> None:
        """The session is over."""
        client = self._place.pop(session, None)
        if client is not None:
            self._load[client.url] -= 1

    def lose(self, client: ServerClient, error: Exception) -> None:
        """Send nothing more to a server until it is back."""
        if client.url not in self._dead:
            logger.warning("lost a vLLM server: %s", one_line(error))
        self._dead[client.url] = one_line(error)
        if not self.alive and self._outage_since is None:
            self._outage_since = time.monotonic()
        for call in self._in_flight.pop(client.url, ()):
            call.cancel()

    async def _look_at_all(self) -> None:
        while True:
            await asyncio.sleep(self._patience.health_interval_s)
            await asyncio.gather(*map(self._look_at, self._clients))

    async def _look_at(self, client: ServerClient) -> None:
        if client.url not in self._dead:
            limit = self._patience.dead_after_s
            if not await client.is_healthy(timeout_s=limit) and client.url not in self._dead:
                self.lose(
                    client,
                    ServerGone(
                        f"{client.url} is dead or has given no sign of life for {limit:g} s "
                        "(engine.dead_after_s)"
                    ),
                )
            return
        try:
            if self._revive is not None:
                await self._revive(client)
        except ServerLostError as error:
            self._dead[client.url] = str(error)
            if not self.alive:
                self._problem = str(error)
            return
        except AriseError as error:
            self._dead[client.url] = one_line(error)
            return
        if await client.is_healthy(timeout_s=self._patience.dead_after_s):
            await self._take_back(client)

    async def _take_back(self, client: ServerClient) -> None:
        try:
            await self._welcome(client)
        except AriseError as error:
            reason = one_line(error)
            if self._dead.get(client.url) != reason:
                logger.warning("%s answers again but cannot be used: %s", client.url, reason)
            self._dead[client.url] = reason
        else:
            del self._dead[client.url]
            self._outage_since, self._problem = None, ""
            logger.warning("the vLLM server %s is back", client.url)
