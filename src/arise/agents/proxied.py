"""One trajectory behind the recording proxy: budgets, sampling, skills, rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arise.agents.chat_calls import ChatAnswer, ChatCall, RefusedCall, new_call
from arise.agents.dialogue import Dialogue, Prompt
from arise.agents.recording import PolicySession, with_skills
from arise.agents.toolcalls import (
    BrokenCall,
    ToolCall,
    parse_reply,
    shown_call,
    split_reasoning,
)
from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, SamplingParams
from arise.types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBudgets:
    """What the calls of one trajectory may cost.

    Attributes:
        max_turns: Most answered calls.
        max_output_tokens: Most tokens of one reply; a client may ask for fewer.
        max_refused_calls: Refused calls after which the episode is ended: a client that does not
            take no for an answer would go on until its deadline.
    """

    max_turns: int
    max_output_tokens: int
    max_refused_calls: int


class ProxiedEpisode:
    """Answers the calls of one agent program and records them, one after the other.

    Args:
        session: The policy's side of the episode.
        budgets: What the calls may cost.

    Attributes:
        session: As given.
        num_calls: Answered calls.
        limit: The budget that was used up last; `None` if none was.
        error: What ended the episode as lost; `None` if nothing did.
        called: Set when a first call has come.
        over: Set when no further call will be answered.
    """

    def __init__(self, session: PolicySession, budgets: CallBudgets) -> None:
        self.session = session
        self.num_calls = 0
        self.limit: FinishReason | None = None
        self.error: InferenceError | ConfigError | None = None
        self.called = asyncio.Event()
        self.over = asyncio.Event()
        self._budgets = budgets
        self._dialogue = Dialogue(session.renderer)
        # An engine knows one call of a session at a time, and rows grow in a fixed order.
        self._lock = asyncio.Lock()

    async def answer(self, call: ChatCall) -> ChatAnswer:
        """Answer one call.

        A call that is cancelled, because its client went away, leaves no trace.

        Raises:
            RefusedCall: A budget is used up, or the call cannot be answered.
        """
        self.called.set()
        async with self._lock:
            try:
                return await self._answer(call)
            except RefusedCall:
                self.session.num_refused_calls += 1
                if self.session.num_refused_calls >= self._budgets.max_refused_calls:
                    self.over.set()
                raise
            except (InferenceError, ConfigError) as error:
                self.error = error
                self.over.set()
                raise RefusedCall(str(error), status=500, code="engine_error") from error

    async def _answer(self, call: ChatCall) -> ChatAnswer:
        if self.over.is_set():
            raise RefusedCall("this episode is over", status=403, code="episode_over")
        if self.num_calls >= self._budgets.max_turns:
            self.limit = FinishReason.TURN_LIMIT
            self.over.set()
            raise RefusedCall(
                f"harness.max_turns = {self._budgets.max_turns} calls were answered",
                code="turn_limit",
            )
        call = self._with_skills(call)
        prompt = self._dialogue.prompt(call)
        room = self._room(prompt)
        completion = await self.session.complete(
            prompt.token_ids,
            max_tokens=min(call.max_tokens or room, self._budgets.max_output_tokens, room),
            sampling=self._sampling(call),
        )
        completion = self._stopped(completion, call.stop)
        answer, action = self._read(prompt, completion)
        self._dialogue.record(prompt, completion, answer, action=action)
        self.num_calls += 1
        self.limit = None
        if prompt.reason is not None:
            self.session.row_reasons[prompt.reason] += 1
        self.session.turns[:] = self._dialogue.turns
        return answer

    def _with_skills(self, call: ChatCall) -> ChatCall:
        """The active skills below the system message, or as one if there is none."""
        skills = self.session.skills
        if not skills or call.prompt is not None:
            return call
        first, *rest = call.messages
        if first["role"] != "system":
            first, rest = {"role": "system", "content": ""}, [*call.messages]
        content = with_skills(first["content"], skills).lstrip("\n")
        return replace(call, messages=({**first, "content": content}, *rest))

    def _room(self, prompt: Prompt) -> int:
        context = self.session.context_tokens
        room = context - len(prompt.token_ids)
        if room > 0:
            return room
        if self.num_calls == 0:
            self.session.require_room_for_skills(prompt.token_ids)
        self.limit = FinishReason.CONTEXT_LIMIT
        raise RefusedCall(
            f"This model's maximum context length is {context} tokens, and the prompt has "
            f"{len(prompt.token_ids)} tokens.",
            code="context_length_exceeded",
        )

    def _sampling(self, call: ChatCall) -> SamplingParams | None:
        """What the client asks for, in evaluation; training samples as the loss assumes."""
        if self.session.is_training or not call.sampling:
            return None
        asked: dict[str, Any] = dict(call.sampling)
        if "top_k" in asked:
            asked["top_k"] = int(asked["top_k"])
        return replace(self.session.sampling, **asked)

    def _stopped(self, completion: Completion, stop: Sequence[str]) -> Completion:
        """The reply up to the token that completes a text which ends it.

        The tokens after it were sampled, but nobody sees them: they are no part of the history.
        """
        decode = self.session.renderer.decode
        if not any(text in decode(completion.token_ids) for text in stop):
            return completion
        low, high = 1, len(completion.token_ids)
        while low < high:
            middle = (low + high) // 2
            shown = decode(completion.token_ids[:middle])
            low, high = (low, middle) if any(text in shown for text in stop) else (middle + 1, high)
        return replace(
            completion,
            token_ids=completion.token_ids[:low],
            logprobs=completion.logprobs[:low],
            policy_versions=completion.policy_versions[:low],
            finish_reason="stop",
        )

    def _read(self, prompt: Prompt, completion: Completion) -> tuple[ChatAnswer, str | None]:
        """The reply as the client gets it, and the action in it as people read it."""
        text = self.session.renderer.decode(completion.token_ids)
        for stop in prompt.call.stop:
            text = text.partition(stop)[0]
        common: dict[str, Any] = {
            "text": text,
            "prompt_token_ids": prompt.token_ids,
            "token_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "prompt_tokens": len(prompt.token_ids),
            "completion_tokens": len(completion.token_ids),
        }
        if prompt.call.prompt is not None:
            return ChatAnswer(content=text, finish_reason=completion.finish_reason, **common), text
        reasoning, body = split_reasoning(text)
        calls: list[ToolCall | BrokenCall] = []
        if completion.finish_reason == "stop" and prompt.call.tools:
            parsed = parse_reply(text, schemas=schemas_of(prompt.call.tools))
            calls = list(parsed.calls)
            if any(isinstance(item, ToolCall) for item in calls):
                body = parsed.content
        self.session.num_tool_calls += len(calls)
        self.session.num_tool_errors += sum(isinstance(item, BrokenCall) for item in calls)
        wanted = [item for item in calls if isinstance(item, ToolCall)]
        answer = ChatAnswer(
            content=body.strip(),
            reasoning=reasoning,
            tool_calls=tuple(new_call(item.name, item.arguments) for item in wanted),
            finish_reason="tool_calls" if wanted else completion.finish_reason,
            **common,
        )
        return answer, "\n".join(shown_call(item) for item in wanted) or None


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """JSON schema of the arguments by tool name."""
    functions = [tool.get("function") or tool for tool in tools]
    return {str(function.get("name")): function.get("parameters") or {} for function in functions}
