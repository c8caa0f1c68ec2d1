"""Several servers: episodes stay where they are, load is even, dead ones are left and found again.

A server keeps the keys of an episode's earlier turns, so moving costs a prefill; nothing else is
lost, because every request carries the whole prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from arise.errors import AriseError, InferenceError, one_line
from arise.inference.vllm.client import ServerClient, ServerGone

logger = logging.getLogger(__name__)

Session = tuple[int, int]


class ServerPool:
    """The servers of one run.

    Args:
        clients: At least one.
        health_interval_s: How often dead servers are looked for, in seconds.
        welcome: Prepares a server that has come back, before it gets its first request; raises if
            it cannot be used.
    """

    def __init__(
        self,
        clients: Sequence[ServerClient],
        *,
        health_interval_s: float,
        welcome: Callable[[ServerClient], Awaitable[None]],
    ) -> None:
        self._clients = list(clients)
        self._dead: dict[str, str] = {}
        self._place: dict[Session, ServerClient] = {}
        self._load: Counter[str] = Counter()
        self._health_interval_s = health_interval_s
        self._welcome = welcome
        self._watch: asyncio.Task[None] | None = None

    @property
    def alive(self) -> list[ServerClient]:
        """Servers in use."""
        return [client for client in self._clients if client.url not in self._dead]

    def start(self) -> None:
        """Begin looking for servers that come back."""
        self._watch = asyncio.get_running_loop().create_task(self._watch_dead())

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
            client = self.place(session)
            try:
                return await client.generate({**body, "model": client.model})
            except ServerGone as error:
                self.lose(client, error)

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
            reasons = "; ".join(self._dead.values())
            raise InferenceError(f"no vLLM server is left: {reasons}")
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

    async def _watch_dead(self) -> None:
        while True:
            await asyncio.sleep(self._health_interval_s)
            for client in [c for c in self._clients if c.url in self._dead]:
                if await client.is_healthy(timeout_s=self._health_interval_s):
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
            logger.warning("the vLLM server %s is back", client.url)
