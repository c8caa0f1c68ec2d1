"""A chat model that answers by a function: deterministic, offline, for tests and dry runs."""

from __future__ import annotations

from collections.abc import Callable

from arise.llm.chat import ChatRequest, ChatResponse


class ScriptedChatModel:
    """Answers each request with `answer(request)`.

    Args:
        answer: Gives the answer's text; may raise `JudgeError` to play an outage.
        name: Name under which the answers are recorded.

    Attributes:
        requests: Every request so far, in the order of arrival.

    Example:
        >>> import asyncio
        >>> from arise.llm.chat import Purpose
        >>> model = ScriptedChatModel(lambda request: "[]")
        >>> request = ChatRequest(purpose=Purpose.GENERATION, messages=())
        >>> asyncio.run(model.complete(request)).text
        '[]'
    """

    def __init__(self, answer: Callable[[ChatRequest], str], *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self._answer = answer

    async def start(self) -> None:
        """Nothing to check."""

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Record the request and answer it."""
        self.requests.append(request)
        return ChatResponse(text=self._answer(request))

    async def stop(self) -> None:
        """Nothing to release."""
