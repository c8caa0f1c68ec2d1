"""Requests and answers of `/v1/messages`, in the terms of chat completions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from arise.agents.chat_calls import ChatAnswer, ChatCall, RefusedCall, text_of

_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def read_messages(body: Mapping[str, Any]) -> ChatCall:
    """A request body of `/v1/messages`.

    Raises:
        RefusedCall: It is malformed, or has content that is not text.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RefusedCall("messages must be a list with at least one message")
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": text_of(body["system"])})
    for message in given:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise RefusedCall("a message needs a role of user or assistant")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise RefusedCall("content must be text or a list of blocks")
        read = _assistant if message["role"] == "assistant" else _user
        messages += read(blocks)
    sampling = {
        key: body[key] for key in ("temperature", "top_p", "top_k") if body.get(key) is not None
    }
    limit = body.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise RefusedCall("max_tokens must be a whole number of 1 or more")
    return ChatCall(
        messages=tuple(messages),
        tools=tuple(_tool(tool) for tool in body.get("tools") or ()),
        max_tokens=limit,
        sampling=sampling,
        stop=tuple(body.get("stop_sequences") or ()),
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description", ""),
        "parameters": tool.get("input_schema") or {},
    }
    return {"type": "function", "function": function}


def _assistant(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            message["content"] += str(block.get("text", ""))
        elif kind == "thinking":
            message["reasoning_content"] = str(block.get("thinking", ""))
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": dict(block.get("input") or {})}
            calls.append({"id": block.get("id", ""), "type": "function", "function": function})
        else:
            raise RefusedCall(f"a block of type {kind!r} is not supported", code="unsupported")
    if calls:
        message["tool_calls"] = calls
    return [message]


def _user(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools become messages of their own, before the text that stands with them."""
    results, texts = [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "tool_result":
            result = {"role": "tool", "content": text_of(block.get("content"))}
            results.append({**result, "tool_call_id": str(block.get("tool_use_id", ""))})
        else:
            raise RefusedCall(f"a block of type {kind!r} is not supported", code="unsupported")
    text = [{"role": "user", "content": "".join(texts)}] if texts or not results else []
    return [*results, *text]


def message_body(answer: ChatAnswer, *, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The whole response."""
    return {
        **_head(model, answer),
        "content": list(_blocks(answer)),
        "stop_reason": _REASONS[answer.finish_reason],
        "stop_sequence": None,
        "usage": _usage(answer),
    }


def message_events(
    answer: ChatAnswer, *, model: str, body: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The same answer as the (name, data) of a stream's events."""

    def event(name: str, **data: Any) -> tuple[str, Mapping[str, Any]]:
        return name, {"type": name, **data}

    start = {**_head(model, answer), "content": [], "stop_reason": None, "stop_sequence": None}
    yield event("message_start", message={**start, "usage": {**_usage(answer), "output_tokens": 0}})
    for index, block in enumerate(_blocks(answer)):
        empty, delta = _pieces(block)
        yield event("content_block_start", index=index, content_block=empty)
        yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    reason = {"stop_reason": _REASONS[answer.finish_reason], "stop_sequence": None}
    yield event("message_delta", delta=reason, usage={"output_tokens": answer.completion_tokens})
    yield event("message_stop")


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A block as it begins, and what is added to it."""
    if block["type"] == "tool_use":
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        return {**block, "input": {}}, delta
    kind = str(block["type"])
    return {**block, kind: ""}, {"type": f"{kind}_delta", kind: block[kind]}


def _blocks(answer: ChatAnswer) -> Iterator[dict[str, Any]]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": ""}
    if answer.content or not answer.tool_calls:
        yield {"type": "text", "text": answer.content}
    for call in answer.tool_calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def _head(model: str, answer: ChatAnswer) -> dict[str, Any]:
    message_id = f"msg_{secrets.token_hex(12)}"
    return {"id": message_id, "type": "message", "role": "assistant", "model": model}


def _usage(answer: ChatAnswer) -> dict[str, int]:
    return {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}


def error_body(error: RefusedCall) -> dict[str, Any]:
    """An error in the shape that clients of `/v1/messages` read."""
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
