"""Requests and answers of chat completions, apart from HTTP and from tokens."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arise.agents.marking import arguments_of

_ROLES = {"system", "developer", "user", "assistant", "tool"}


class RefusedCall(Exception):
    """A call that is answered with an error.

    Args:
        message: For the client.
        status: HTTP status.
        code: Machine-readable, as clients know it.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """One request for a reply.

    Attributes:
        messages: Role, content (text), and where given `reasoning_content` and `tool_calls` with
            arguments as mappings.
        tools: Definitions, as given.
        max_tokens: Longest reply that the client wants; `None` if it does not say.
        sampling: temperature, top_p and top_k as far as the client gives them.
        stop: Texts that end the reply.
        prompt: Instead of messages: a text or token ids that no template is wrapped around.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    prompt: str | tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """A reply in its parts.

    Attributes:
        content: Text outside of reasoning and calls.
        reasoning: Text of the thinking.
        tool_calls: In the shape of chat completions, with ids.
        finish_reason: `"stop"`, `"tool_calls"` or `"length"`.
        text: The whole generated text.
        prompt_token_ids: int[P]; empty if the model does not give ids.
        token_ids: int[N]; empty if the model does not give ids.
        logprobs: float[N].
        tokens: Text of each token; filled if the client asks for log-probabilities.
        prompt_tokens: Number of tokens read.
        completion_tokens: Number of tokens generated.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str = "stop"
    text: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["content"] = self.content or None
            message["tool_calls"] = list(self.tool_calls)
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return message


def read_chat(body: Mapping[str, Any]) -> ChatCall:
    """A request body of `/v1/chat/completions`.

    Raises:
        RefusedCall: It is malformed, or asks for what a recorded policy cannot do.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedCall("messages must be a list with at least one message")
    tools = body.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RefusedCall("tools must be a list of objects")
    kind = (body.get("response_format") or {}).get("type", "text")
    if kind != "text":
        raise RefusedCall(
            f"response_format {kind!r} would change the distribution that is sampled from; leave "
            "it out",
            code="unsupported",
        )
    return ChatCall(
        messages=tuple(read_message(message) for message in messages),
        tools=() if body.get("tool_choice") == "none" else tuple(tools),
        **_common(body, "max_completion_tokens", "max_tokens"),
    )


def read_completion(body: Mapping[str, Any]) -> ChatCall:
    """A request body of `/v1/completions`.

    Raises:
        RefusedCall: It is malformed.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
        prompt = tuple(prompt)
    if not prompt or not isinstance(prompt, str | tuple):
        raise RefusedCall("prompt must be one text, or one list of token ids")
    return ChatCall(prompt=prompt, **_common(body, "max_tokens"))


def _common(body: Mapping[str, Any], *limits: str) -> dict[str, Any]:
    if body.get("n") not in (None, 1):
        raise RefusedCall("n must be 1", code="unsupported")
    asked = next((body[key] for key in limits if body.get(key) is not None), None)
    if asked is not None and (type(asked) is not int or asked < 1):
        raise RefusedCall(f"{limits[0]} must be a whole number of 1 or more")
    sampling = {}
    for key in ("temperature", "top_p", "top_k"):
        value = body.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or value < 0:
            raise RefusedCall(f"{key} must be a number of 0 or more")
        sampling[key] = value
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise RefusedCall("stop must be a text or a list of texts")
    return {
        "max_tokens": asked,
        "sampling": sampling,
        "stop": tuple(text for text in stop if text),
    }


def read_message(message: Any) -> dict[str, Any]:
    """One message with text content and tool-call arguments as mappings.

    Raises:
        RefusedCall: An unknown role, or content that is not text.
    """
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RefusedCall(f"a message needs a role of {', '.join(sorted(_ROLES))}")
    role = "system" if message["role"] == "developer" else message["role"]
    read: dict[str, Any] = {"role": role, "content": text_of(message.get("content"))}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            read["reasoning_content"] = reasoning
        calls = message.get("tool_calls")
        if calls:
            read["tool_calls"] = [_read_call(call) for call in calls]
    if role == "tool":
        read["tool_call_id"] = str(message.get("tool_call_id", ""))
    return read


def _read_call(call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        name, arguments = str(function["name"]), arguments_of(function.get("arguments"))
        return {
            "id": str(call.get("id", "")),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
    except (KeyError, TypeError, AttributeError):
        raise RefusedCall("a tool call needs a function with a name") from None


def text_of(content: Any) -> str:
    """Content as one text; a list of text parts is joined.

    Raises:
        RefusedCall: There is something else than text in it.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            return "".join(texts)
    raise RefusedCall("content must be text or a list of text parts", code="unsupported")


def new_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call as an answer carries it, with an id of its own."""
    return {
        "id": f"call_{secrets.token_hex(8)}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(dict(arguments), ensure_ascii=False)},
    }


def chat_body(answer: ChatAnswer, *, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The whole response of `/v1/chat/completions`."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": answer.message,
        "finish_reason": answer.finish_reason,
    }
    if body.get("logprobs"):
        choice["logprobs"] = {
            "content": [
                {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(answer.token_ids, answer.logprobs, strict=True)
            ]
        }
    if body.get("return_token_ids"):
        choice["token_ids"] = list(answer.token_ids)
    response = _head("chat.completion", model) | {"choices": [choice], "usage": usage(answer)}
    if body.get("return_token_ids"):
        response["prompt_token_ids"] = list(answer.prompt_token_ids)
    return response


def completion_body(answer: ChatAnswer, *, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The whole response of `/v1/completions`."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "logprobs": None,
    }
    if body.get("logprobs") is not None:
        choice["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in answer.token_ids],
            "token_logprobs": list(answer.logprobs),
        }
    if body.get("return_token_ids"):
        choice["token_ids"] = list(answer.token_ids)
        choice["prompt_token_ids"] = list(answer.prompt_token_ids)
    return _head("text_completion", model) | {"choices": [choice], "usage": usage(answer)}


def chat_chunks(
    answer: ChatAnswer, *, model: str, body: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The same answer as the events of a stream."""
    head = _head("chat.completion.chunk", model)
    for delta in _deltas(answer):
        yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": answer.finish_reason}
    if body.get("return_token_ids"):
        last["token_ids"] = list(answer.token_ids)
    yield head | {"choices": [last]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield head | {"choices": [], "usage": usage(answer)}


def completion_chunks(
    answer: ChatAnswer, *, model: str, body: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """A stream with the whole text in one event."""
    yield completion_body(answer, model=model, body=body)


def _deltas(answer: ChatAnswer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if answer.reasoning:
        yield {"reasoning_content": answer.reasoning}
    if answer.content:
        yield {"content": answer.content}
    for index, call in enumerate(answer.tool_calls):
        yield {"tool_calls": [{"index": index, **call}]}


def usage(answer: ChatAnswer) -> dict[str, int]:
    """Token counts as clients know them."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _head(kind: str, model: str) -> dict[str, Any]:
    prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def same_tools(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two lists of definitions write the same prompt."""
    return list(one) == list(other)
