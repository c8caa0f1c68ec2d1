"""A model behind an OpenAI-compatible endpoint as the one that is evaluated: bodies in and out.

Judge and reflection have a client of their own (`arise.llm.openai_client`): they send texts. An
evaluated model gets tools and histories of calls, which pass through here untouched.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from typing import Any

import aiohttp

from arise.errors import ConfigError, InferenceError

_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_ERROR_CHARACTERS = 500


class ContextFullError(Exception):
    """The endpoint says that prompt and reply do not fit its context."""


class ChatEndpoint:
    """Sends chat completions with retries; one object for a whole evaluation.

    Args:
        model: Model name at the endpoint; key `model.model`.
        base_url: Up to and including `/v1`; key `model.base_url`.
        api_key_env: Name of the environment variable with the key; `None` if it needs none.
        extra_body: Further keys of each request, such as how much to think.
        timeout_s: Limit on one try.
        max_tries: Most tries of one request.
        max_concurrency: Most requests in flight.

    Raises:
        ConfigError: A value is out of range, or the variable with the key is not set.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        api_key_env: str | None,
        extra_body: Mapping[str, Any],
        timeout_s: float,
        max_tries: int,
        max_concurrency: int,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"model.base_url = {base_url!r} must be an address such as http://127.0.0.1:8000/v1"
            )
        for key, value in (("max_tries", max_tries), ("max_concurrency", max_concurrency)):
            if value < 1:
                raise ConfigError(f"model.{key} = {value} must be at least 1")
        if api_key_env is not None and not os.environ.get(api_key_env):
            raise ConfigError(
                f"model.api_key_env: the environment variable {api_key_env} is not set; export it, "
                "or set model.api_key_env=null for an endpoint that needs none"
            )
        self.model = model
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._api_key_env = api_key_env
        self._extra_body = dict(extra_body)
        self._timeout_s = timeout_s
        self._max_tries = max_tries
        self._slots = asyncio.Semaphore(max_concurrency)
        self._http: aiohttp.ClientSession | None = None

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One response.

        Args:
            body: A request without the model's name.

        Raises:
            ContextFullError: The request is longer than the model's context.
            InferenceError: There was no usable answer.
        """
        whole = {**self._extra_body, **body, "model": self.model}
        async with self._slots:
            for number in range(1, self._max_tries + 1):
                try:
                    return await self._try(whole)
                except (aiohttp.ClientError, TimeoutError, _RetryableError) as error:
                    if number == self._max_tries:
                        raise InferenceError(
                            f"{self.model} gave no answer in {number} tries: {error!r:.300}"
                        ) from None
                    await asyncio.sleep(min(30.0, 2.0 ** (number - 1)) * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable: the last try returns or raises")

    async def _try(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=0),
            )
        key = os.environ.get(self._api_key_env or "", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self._http.post(self._url, json=body, headers=headers) as response:
            text = await response.text()
            if response.status in _RETRYABLE:
                raise _RetryableError(f"status {response.status}: {text[:_ERROR_CHARACTERS]}")
            if response.status != 200:
                said = text.replace(key, "***") if key else text
                if response.status == 400 and "context" in said and "length" in said:
                    raise ContextFullError(said[:_ERROR_CHARACTERS])
                raise InferenceError(
                    f"{self.model} refuses: status {response.status}: {said[:_ERROR_CHARACTERS]}"
                )
            answer = await response.json(content_type=None)
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise InferenceError(f"{self.model} gave an answer without choices")
        return answer

    async def stop(self) -> None:
        """Close the connections; safe to call more than once."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()


class _RetryableError(Exception):
    """A try failed in a way that may pass."""
