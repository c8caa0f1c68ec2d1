"""Plays a model behind an endpoint, which gives texts and no token ids: for evaluation only.

`EndpointSession` has the verbs of `PolicySession`, and `ForwardedEpisode` those of
`ProxiedEpisode`; what they record has texts, actions and token counts, and cannot be trained.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from arise.agents.chat_calls import ChatAnswer, ChatCall, RefusedCall, text_of
from arise.agents.marking import arguments_of
from arise.agents.proxied import CallBudgets
from arise.agents.recording import PolicySession, Reply
from arise.agents.toolcalls import ToolCall, shown_call
from arise.errors import InferenceError
from arise.inference.base import Completion, Engine, GenerationRequest, SamplingParams, WeightReport
from arise.llm.endpoint import ChatEndpoint, ContextFullError
from arise.types import FinishReason, Turn

_CHARACTERS_PER_TOKEN = 4


class TextRenderer:
    """Stands in for the chat renderer of a model whose tokens nobody sees."""

    renders_tools = False
    stop_token_ids: tuple[int, ...] = ()

    def encode_text(self, text: str) -> tuple[int, ...]:
        """As many zeros as the text has tokens, roughly."""
        return (0,) * (len(text) // _CHARACTERS_PER_TOKEN)


class EndpointEngine(Engine):
    """Holds the endpoint where an engine would be; no call ever comes as token ids.

    Args:
        endpoint: The model.
        max_context_tokens: Its context.
    """

    is_concurrent = True

    def __init__(self, endpoint: ChatEndpoint, *, max_context_tokens: int) -> None:
        self.endpoint = endpoint
        self.max_context_tokens = max_context_tokens

    @property
    def dtype(self) -> None:
        """There are no weights."""
        return None

    async def start(self) -> None:
        """The endpoint runs already."""

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        """Refuse: the endpoint takes messages."""
        return [InferenceError("an endpoint takes messages, not token ids")] * len(requests)

    async def release(self, session: tuple[int, int]) -> None:
        """Nothing is kept."""

    async def load_weights(self, weights: Mapping[str, Any], *, version: int) -> WeightReport:
        """Refuse: the weights are somebody else's."""
        raise InferenceError("a model behind an endpoint takes no weights")

    async def rest(self) -> None:
        """Nothing to put to rest."""

    async def stop(self) -> None:
        """Close the connections."""
        await self.endpoint.stop()


class EndpointSession(PolicySession):
    """One episode of a model behind an endpoint, as messages.

    Args:
        endpoint: The model.
        options: What `PolicySession` takes.
    """

    def __init__(self, *, endpoint: ChatEndpoint, **options: Any) -> None:
        super().__init__(**options)
        self._endpoint = endpoint
        self._messages: list[dict[str, Any]] = []
        self._num_tokens = 0

    @property
    def room(self) -> int:
        """Tokens that still fit into the context, as far as the endpoint's counts tell."""
        return self.context_tokens - self._num_tokens

    def begin(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        reason: str = "step",
    ) -> None:
        """Start a conversation."""
        if self.turns:
            self.row_reasons[reason] += 1
        self._messages = [dict(message) for message in messages]
        self._num_tokens = sum(
            len(message["content"]) // _CHARACTERS_PER_TOKEN for message in self._messages
        )

    def snapshot(self) -> tuple[Any, ...]:
        """The conversation, to `return_to` later."""
        return tuple(self._messages)

    def return_to(self, snapshot: tuple[Any, ...], observation: str, *, reason: str) -> None:
        """Go on from an earlier conversation."""
        self.row_reasons[reason] += 1
        self._messages = [*snapshot, {"role": "user", "content": observation}]

    async def reply(self, *, max_tokens: int) -> Reply:
        """Ask for the next reply and record it as a turn."""
        call = ChatCall(messages=tuple(self._messages), max_tokens=max_tokens)
        try:
            answer = await self.ask(call, {})
        except ContextFullError:
            return Reply(text="", limit=FinishReason.CONTEXT_LIMIT)
        self.record(answer, action=None)
        self._messages.append(answer.message)
        self._num_tokens = answer.prompt_tokens + answer.completion_tokens
        cut = FinishReason.OUTPUT_LIMIT if answer.finish_reason == "length" else None
        return Reply(text=answer.content, limit=cut)

    def observe(self, observation: str | Sequence[str], *, exit_code: int | None = None) -> None:
        """Record what the environment answered, and say it to the model as the user."""
        shown = observation if isinstance(observation, str) else "\n".join(observation)
        self.amend(observation=shown, exit_code=exit_code)
        self._messages.append({"role": "user", "content": shown})

    async def ask(self, call: ChatCall, sampling: Mapping[str, float]) -> ChatAnswer:
        """One call of the model, with the evaluation's sampling where the client gives none.

        Raises:
            ContextFullError: It is longer than the model's context.
            InferenceError: There was no usable answer.
        """
        response = await self._endpoint.complete(_body(call, self.sampling, sampling))
        answer = _answer(response)
        self.count_tokens(answer.prompt_tokens, answer.completion_tokens)
        return answer

    def record(self, answer: ChatAnswer, *, action: str | None) -> None:
        """Add a call as a turn without tokens."""
        cut = answer.finish_reason == "length"
        self.turns.append(
            Turn(
                prompt_token_ids=(),
                token_ids=(),
                logprobs=(),
                policy_versions=(),
                text=answer.text,
                action=action,
                finish_reason="length" if cut else "stop",
                starts_row=not self.turns,
            )
        )


class ForwardedEpisode:
    """Answers the calls of an agent program by the endpoint.

    Args:
        session: The episode.
        budgets: What the calls may cost.

    Attributes:
        session: As given.
        num_calls: Answered calls.
        limit: The budget that was used up last; `None` if none was.
        error: What ended the episode as lost; `None` if nothing did.
        called: Set when a first call has come.
        over: Set when no further call will be answered.
    """

    def __init__(self, session: EndpointSession, budgets: CallBudgets) -> None:
        self.session = session
        self.num_calls = 0
        self.limit: FinishReason | None = None
        self.error: InferenceError | None = None
        self.called = asyncio.Event()
        self.over = asyncio.Event()
        self._budgets = budgets

    async def answer(self, call: ChatCall) -> ChatAnswer:
        """Answer one call.

        Raises:
            RefusedCall: A budget is used up, or the call cannot be answered.
        """
        self.called.set()
        try:
            return await self._answer(call)
        except ContextFullError as error:
            self.limit = FinishReason.CONTEXT_LIMIT
            raise self._refused(str(error), "context_length_exceeded") from error
        except InferenceError as error:
            self.error = error
            self.over.set()
            raise RefusedCall(str(error), status=500, code="engine_error") from error

    async def _answer(self, call: ChatCall) -> ChatAnswer:
        if self.over.is_set():
            raise RefusedCall("this episode is over", status=403, code="episode_over")
        if self.num_calls >= self._budgets.max_turns:
            self.limit = FinishReason.TURN_LIMIT
            self.over.set()
            raise self._refused("harness.max_turns calls were answered", "turn_limit")
        if call.prompt is not None:
            raise self._refused("the evaluated model takes messages only", "unsupported")
        answer = await self.session.ask(call, call.sampling)
        self.num_calls += 1
        self.limit = None
        new = _after_reply(call.messages)
        if self.session.turns and new:
            self.session.amend(observation="\n".join(message["content"] for message in new))
        calls = [
            ToolCall(
                name=item["function"]["name"],
                arguments=arguments_of(item["function"].get("arguments")),
            )
            for item in answer.tool_calls
        ]
        self.session.num_tool_calls += len(calls)
        self.session.record(answer, action="\n".join(map(shown_call, calls)) or None)
        return answer

    def _refused(self, message: str, code: str) -> RefusedCall:
        self.session.num_refused_calls += 1
        if self.session.num_refused_calls >= self._budgets.max_refused_calls:
            self.over.set()
        return RefusedCall(message, code=code)


def _after_reply(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages after the last reply."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] == "assistant":
            return list(messages[place + 1 :])
    return []


def _body(call: ChatCall, sampling: SamplingParams, asked: Mapping[str, float]) -> dict[str, Any]:
    """A request body; sampling that is off is left out, since not every endpoint knows it."""
    messages = []
    for message in call.messages:
        message = dict(message)
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {
                    **item,
                    "function": {
                        **item["function"],
                        "arguments": item["function"]["arguments"]
                        if isinstance(item["function"]["arguments"], str)
                        else json.dumps(item["function"]["arguments"]),
                    },
                }
                for item in message["tool_calls"]
            ]
        messages.append(message)
    body: dict[str, Any] = {"messages": messages, "temperature": sampling.temperature}
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        body["top_k"] = sampling.top_k
    body |= asked
    if call.tools:
        body["tools"] = list(call.tools)
    if call.max_tokens is not None:
        body["max_tokens"] = call.max_tokens
    if call.stop:
        body["stop"] = list(call.stop)
    return body


def _answer(response: Mapping[str, Any]) -> ChatAnswer:
    choice = response["choices"][0]
    message = choice.get("message") or {}
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    content = text_of(message.get("content"))
    calls = tuple(message.get("tool_calls") or ())
    usage = response.get("usage") or {}
    text = f"<think>{reasoning}</think>{content}" if reasoning else content
    return ChatAnswer(
        content=content,
        reasoning=str(reasoning),
        tool_calls=calls,
        finish_reason="tool_calls" if calls else str(choice.get("finish_reason") or "stop"),
        text=text,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
    )
