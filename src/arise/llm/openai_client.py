"""Chat models behind an OpenAI-compatible endpoint; the only place that imports `openai`."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from arise.errors import ConfigError, JudgeError, one_line
from arise.llm.chat import ChatRequest, ChatResponse
from arise.llm.text import clean_text

logger = logging.getLogger(__name__)

_RETRYABLE = frozenset({408, 409, 425, 429})
_START_TIMEOUT_S = 20.0


class OpenAIChatModel:
    """Answers chat requests over HTTP, with a bound on concurrency, time and tries.

    One object serves one event loop for the run's whole life. The retries are this class's own
    (the client library's are off), so a request costs at most `max_tries` calls. The API key is
    read from the environment and is in no attribute of this class, message or log.

    Args:
        model: Model name; key `<config_key>.model`.
        base_url: Endpoint, up to and including `/v1`; key `<config_key>.base_url`.
        api_key_env: *Name* of the environment variable with the API key, `None` if the endpoint
            needs none; key `<config_key>.api_key_env`.
        temperature: Sampling temperature; `None` leaves it to the endpoint.
        max_tokens: Longest answer where the request names none; `None` leaves it to the endpoint.
        timeout_s: Limit on one try, from sending to the last byte.
        max_tries: Most calls for one request.
        max_concurrency: Most requests in flight.
        backoff_s: Wait before the second try; doubles with each further one, with jitter.
        max_wait_s: Longest wait between tries. An endpoint that asks for more is not called
            again for this request.
        response_format: `type` of the requested format, such as `"json_object"`; given up for good
            if the endpoint refuses it. `None` sends none.
        config_key: Config group, for messages.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        api_key_env: str | None,
        temperature: float | None,
        max_tokens: int | None,
        timeout_s: float,
        max_tries: int,
        max_concurrency: int,
        backoff_s: float,
        max_wait_s: float,
        response_format: str | None = None,
        config_key: str = "judge",
    ) -> None:
        _check_url(base_url, config_key)
        if not model:
            raise ConfigError(f"{config_key}.model must name a model of the endpoint")
        for name, value, low in (
            ("timeout_s", timeout_s, 1e-3),
            ("max_tries", max_tries, 1),
            ("max_concurrency", max_concurrency, 1),
            ("backoff_s", backoff_s, 0),
            ("max_wait_s", max_wait_s, 0),
        ):
            if not value >= low:
                raise ConfigError(f"{config_key}.{name} must be >= {low}, got {value!r}")
        self.name = model
        self._base_url = base_url
        self._api_key_env = api_key_env
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._max_tries = max_tries
        self._backoff_s = backoff_s
        self._max_wait_s = max_wait_s
        self._response_format = response_format
        self._config_key = config_key
        self._semaphore = asyncio.Semaphore(max_concurrency)
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"OpenAIChatModel(model={self.name!r}, base_url={self._base_url!r})"

    async def start(self) -> None:
        """Check that the key is there and the endpoint answers.

        Raises:
            ConfigError: The key's variable is not set, the endpoint cannot be reached, or it
                refuses the key.
        """
        import openai

        client = self._connect()
        url_key = f"{self._config_key}.base_url={self._base_url}"
        try:
            async with asyncio.timeout(min(self._timeout_s, _START_TIMEOUT_S)):
                await client.get("/models", cast_to=str)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ConfigError(
                f"{url_key} refuses the key in the environment variable named by "
                f"{self._config_key}.api_key_env={self._api_key_env}: {self._describe(error)}"
            ) from None
        except openai.APIStatusError as error:
            logger.warning("%s answers, but lists no models: %s", url_key, self._describe(error))
        except (openai.APIConnectionError, TimeoutError) as error:
            raise ConfigError(
                f"{url_key} cannot be reached: {self._describe(error)}. Start the endpoint or "
                f"give another address, up to and including /v1"
            ) from None

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request.

        Rate limits, server errors, broken connections and time-outs are tried again, not before
        the time in `Retry-After`. An answer without content is an answer and is not tried again.

        Raises:
            JudgeError: No answer within the tries, a refusal, or one without content.
        """
        client = self._connect()
        async with self._semaphore:
            for num_tries in range(1, self._max_tries + 1):
                try:
                    return await self._try(client, request, num_tries)
                except _Retry as retry:
                    wait_s = self._wait_s(num_tries, retry.after_s)
                    is_over = num_tries == self._max_tries or wait_s is None
                    if is_over or not _may_try_again(request):
                        reason = "" if is_over else ", and the budget of calls is spent"
                        raise JudgeError(
                            f"no answer from {self.name} after {num_tries} of "
                            f"{self._max_tries} tries{reason}: {retry}"
                        ) from None
                    assert wait_s is not None
                    logger.info("try %d of %s failed: %s", num_tries, self.name, retry)
                    await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: the last try returns or raises")

    async def stop(self) -> None:
        """Close the connections; safe to repeat."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connect(self) -> Any:
        """The client, made on first use; it is bound to the event loop of that moment."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError(f"{self!r} is used from two event loops; a run must have one")
        if self._client is None:
            import openai

            self._loop = loop
            self._client = openai.AsyncOpenAI(
                base_url=self._base_url,
                api_key=self._key() or "none",
                timeout=self._timeout_s,
                max_retries=0,
            )
        return self._client

    def _key(self) -> str | None:
        if self._api_key_env is None:
            return None
        key = os.environ.get(self._api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"{self._config_key}.api_key_env={self._api_key_env}: this environment variable "
                "is not set. Export it with the endpoint's API key, or set "
                f"{self._config_key}.api_key_env=null for an endpoint that needs none"
            )
        return key

    async def _try(self, client: Any, request: ChatRequest, num_tries: int) -> ChatResponse:
        import openai

        arguments = self._arguments(request)
        try:
            async with asyncio.timeout(self._timeout_s):
                completion = await client.chat.completions.create(**arguments)
        except openai.APIStatusError as error:
            status = error.status_code
            if status in (400, 422) and "response_format" in arguments:
                logger.warning(
                    "%s refuses response_format=%s; going on without: %s",
                    self.name,
                    self._response_format,
                    self._describe(error),
                )
                self._response_format = None
                raise _Retry(self._describe(error), after_s=0.0) from None
            if status in _RETRYABLE or status >= 500:
                after_s = retry_after_s(error.response.headers, now_s=time.time())
                raise _Retry(self._describe(error), after_s=after_s) from None
            raise JudgeError(f"{self.name} refuses: {self._describe(error)}") from None
        except (openai.APIError, TimeoutError, ValueError) as error:
            raise _Retry(self._describe(error)) from None
        return _read(completion, num_tries)

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self.name,
            "messages": [
                {key: clean_text(value) for key, value in message.items()}
                for message in request.messages
            ],
        }
        if self._temperature is not None:
            arguments["temperature"] = self._temperature
        max_tokens = request.max_tokens if request.max_tokens is not None else self._max_tokens
        if max_tokens is not None:
            arguments["max_tokens"] = max_tokens
        if self._response_format is not None:
            arguments["response_format"] = {"type": self._response_format}
        return arguments

    def _wait_s(self, num_tries: int, after_s: float | None) -> float | None:
        """Seconds before the next try; `None` if the endpoint asks for too long a wait."""
        if after_s is not None and after_s > self._max_wait_s:
            return None
        backoff_s = min(self._backoff_s * 2 ** (num_tries - 1), self._max_wait_s)
        jitter = random.uniform(0.5, 1.0)
        if after_s is None:
            return backoff_s * jitter
        # Never early; jitter on top, so that all waiting requests do not come back at once.
        return after_s + min(backoff_s, after_s) * (jitter - 0.5)

    def _describe(self, error: BaseException) -> str:
        """The error on one line, without the key should the endpoint have echoed it."""
        text = one_line(error)
        key = os.environ.get(self._api_key_env or "", "").strip()
        return text.replace(key, "***") if key else text


def _may_try_again(request: ChatRequest) -> bool:
    return request.budget is None or request.budget.take()


class _Retry(Exception):
    """A try failed in a way that may pass."""

    def __init__(self, message: str, *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


def _check_url(base_url: str, config_key: str) -> None:
    parts = urlsplit(base_url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{config_key}.base_url must be an http or https address such as "
            f"http://127.0.0.1:8000/v1, got {base_url!r}"
        )
    if parts.username or parts.password:
        raise ConfigError(
            f"{config_key}.base_url must not contain credentials; put the key into the environment "
            f"variable named by {config_key}.api_key_env"
        )


def retry_after_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """Seconds to wait by `Retry-After-Ms` or `Retry-After` (seconds or a date); `None` if absent.

    Args:
        headers: Of the response; names in lower case, or a mapping that ignores case.
        now_s: Seconds since the epoch, to compare a date with.

    Example:
        >>> retry_after_s({"retry-after": "1.5"}, now_s=0.0)
        1.5
    """
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit_s
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - now_s
            except ValueError:
                continue
        if seconds == seconds:
            return max(0.0, seconds)
    return None


def _read(completion: Any, num_tries: int) -> ChatResponse:
    """The answer's text and cost.

    Raises:
        JudgeError: There is no content, which reasoning models do when their tokens run out.
    """
    choices = getattr(completion, "choices", None)
    if not choices:
        raise JudgeError("the answer has no choices")
    message = getattr(choices[0], "message", None)
    finish_reason = getattr(choices[0], "finish_reason", None)
    content = getattr(message, "content", None)
    if not isinstance(content, str) or not content.strip():
        refusal = getattr(message, "refusal", None)
        raise JudgeError(
            f"the answer has no content (finish_reason={finish_reason!r}"
            + (f", refusal={str(refusal)[:200]!r})" if refusal else ")")
        )
    usage = getattr(completion, "usage", None)
    return ChatResponse(
        text=clean_text(content),
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        meta={"finish_reason": finish_reason, "num_tries": num_tries},
    )


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) else 0
