"""One vLLM server over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from arise.errors import InferenceError
from arise.inference.vllm.wire import PATH


class ServerGone(InferenceError):
    """The server cannot be reached, or says that its engine is dead."""


class MissingEndpoint(InferenceError):
    """The server does not know a path or a method."""


class WrongVerb(InferenceError):
    """The server knows the path, but not for this verb."""


class ServerClient:
    """Calls of one server; many run at the same time.

    Args:
        url: Such as `http://10.0.0.7:8000`.
        http: Shared by all servers.
        request_timeout_s: Limit on one call, in seconds.
        api_key: Sent as a bearer token if given.

    Attributes:
        url: Where it is, without a slash at the end.
        model: The name under which it knows its model; set by the start-up checks.
        world_size: How many processes hold its weights.
        facts: What it plays, for people; set by the start-up checks.
    """

    def __init__(
        self,
        url: str,
        *,
        http: aiohttp.ClientSession,
        request_timeout_s: float,
        api_key: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.model = ""
        self.world_size = 1
        self.facts = ""
        self._http = http
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call of the token endpoint.

        Raises:
            ServerGone: No answer; another server may give one.
            InferenceError: The server refuses this request.
        """
        return await self._call("POST", PATH, json=body)

    async def is_healthy(self, *, timeout_s: float) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call("GET", "/health")
        except (InferenceError, TimeoutError):
            return False
        return True

    async def get(self, path: str) -> dict[str, Any]:
        """A GET that answers with JSON."""
        return await self._call("GET", path)

    async def require(self, path: str) -> None:
        """Make sure that a path which takes POST exists, without using it.

        Raises:
            MissingEndpoint: It does not.
        """
        try:
            await self._call("GET", path)
        except WrongVerb:
            return

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """A POST that answers with JSON, or with nothing."""
        return await self._call("POST", path, json=body, params=params)

    async def rpc(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        """Call a method of every worker; results in the workers' order.

        Raises:
            ServerGone: The server cannot be reached.
            MissingEndpoint: The endpoint or the method does not exist.
            InferenceError: A worker raised.
        """
        body = {"method": method, "args": list(arguments)}
        answer = await self._call("POST", "/collective_rpc", json=body)
        return list(answer.get("results", ()))

    async def _call(self, verb: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            async with self._http.request(
                verb, self.url + path, timeout=self._timeout, headers=self._headers, **options
            ) as response:
                if response.status == 200:
                    return await _json(response)
                problem = f"{self.url}{path} answered {response.status}: {await _text(response)}"
                if response.status == 405:
                    raise WrongVerb(problem)
                if response.status == 404 or "has no attribute 'arise_" in problem:
                    raise MissingEndpoint(problem)
                # A worker's own exception; the server lives.
                if response.status >= 500 and path != "/collective_rpc":
                    raise ServerGone(problem)
                raise InferenceError(problem)
        except TimeoutError as error:
            raise ServerGone(f"{self.url}{path} gave no answer within the time limit") from error
        except aiohttp.ClientError as error:
            raise ServerGone(f"{self.url}{path} cannot be reached: {error}") from error


async def _json(response: aiohttp.ClientResponse) -> dict[str, Any]:
    if response.content_type != "application/json":
        return {}
    answer = await response.json()
    return answer if isinstance(answer, dict) else {}


async def _text(response: aiohttp.ClientResponse) -> str:
    return " ".join((await response.text()).split())[:500]
