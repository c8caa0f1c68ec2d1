"""Chat rendering as token ids, append-only and exact.

The first prompt is rendered once; afterwards a conversation only *grows*: what the template puts
between an assistant's reply and its next turn (the "glue") is learned from the template itself,
and generated tokens are never decoded and encoded again. Contents are tokenised apart from the
template's own text, with special tokens off, so tool output that spells `<|im_end|>` stays text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arise.agents.marking import MarkedMessages, without_call_strings
from arise.errors import ConfigError
from arise.llm.text import clean_text

_KEY = "model.loader.chat_template"
_ASKED = {"role": "user", "content": "ariseasked"}
_REPLY = "arisereplied"
_PROBE = "ariseprobe"


class ChatRenderer:
    """Turns messages into token ids for one tokenizer and chat template.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        observation_role: Role of tool output, `"user"` or `"tool"`; the template must know it.

    Attributes:
        stop_token_ids: Tokens that end a reply, sorted.
        observation_role: As given.
        renders_tools: Whether the template writes tool definitions and tool calls itself.

    Raises:
        ConfigError: The template is missing, fails, or drops or repeats a message.

    Example:
        >>> prompt = renderer.start([{"role": "user", "content": "list files"}])
        >>> more = renderer.extend("a.txt", last_token_id=reply_ids[-1])
    """

    def __init__(self, tokenizer: Any, *, observation_role: str) -> None:
        self._tokenizer = tokenizer
        self.observation_role = observation_role
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"the tokenizer has no chat template; set {_KEY} to a Jinja template file"
            )
        first = self._after_reply([{"role": observation_role, "content": _PROBE}])[0][0]
        self.stop_token_ids = self._find_stop_tokens(self._encode(first, special=True))
        self.renders_tools = self._renders_tools()

    def start(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Token ids of a first prompt, up to where the model's reply begins.

        Args:
            messages: The conversation so far. Tool-call arguments may be JSON text or mappings.
            tools: Definitions for the template, in the shape of chat-completion requests.

        Raises:
            ConfigError: The template refuses, drops or repeats a message.
        """
        marked = MarkedMessages(without_call_strings(messages))
        text = self._render(marked.messages, tools=tools)
        self._require_once(marked, text)
        return self._encode_pieces(marked.pieces(text))

    def continuation(
        self, messages: Sequence[Mapping[str, Any]], *, last_token_id: int | None
    ) -> tuple[int, ...]:
        """Token ids to append after a reply: end of turn, new messages, start of the next reply.

        Args:
            messages: What came after the reply.
            last_token_id: The reply's last generated token; the end-of-turn token is not written
                a second time if the model generated it.

        Raises:
            ConfigError: The template refuses, drops or repeats one of them.
        """
        pieces = self._after_reply(messages)
        glue = self._encode(pieces[0][0], special=True)
        if glue and last_token_id == glue[0]:
            glue = glue[1:]
        return (*glue, *self._encode_pieces(pieces[1:]))

    def extend(
        self, observation: str | Sequence[str], *, last_token_id: int | None
    ) -> tuple[int, ...]:
        """`continuation` by one observation, or by the results of several tool calls."""
        contents = [observation] if isinstance(observation, str) else observation
        messages = [{"role": self.observation_role, "content": content} for content in contents]
        return self.continuation(messages, last_token_id=last_token_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated tokens without special tokens."""
        # Clean-up would rewrite commands: "ls ." to "ls.".
        text = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that no template is wrapped around; special tokens stay text."""
        return self._encode(text, special=False)

    def encode_template_text(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt that somebody else rendered: special tokens are what they spell."""
        return self._encode(text, special=True)

    def _after_reply(self, messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
        """What the template writes after an assistant's reply, in pieces of glue and content."""
        marked = MarkedMessages(without_call_strings(messages))
        text = self._render([_ASKED, {"role": "assistant", "content": _REPLY}, *marked.messages])
        roles = sorted({str(message["role"]) for message in messages})
        if text.count(_REPLY) != 1:
            raise ConfigError(
                f"{_KEY}: the template does not write each assistant message exactly once; choose "
                "another template"
            )
        self._require_once(marked, text, hint=roles)
        return list(marked.pieces(text.split(_REPLY, 1)[1]))

    def _require_once(self, marked: MarkedMessages, text: str, *, hint: Sequence[str] = ()) -> None:
        roles = hint or [str(message["role"]) for message in marked.messages]
        if any(text.count(mark) != 1 for mark in marked.required):
            raise ConfigError(
                f"{_KEY}: the template does not write each message of {list(roles)} exactly once; "
                "choose another template or harness.observation_role (user or tool)"
            )

    def _render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **options
            )
        except Exception as error:  # templates raise whatever their author chose
            raise ConfigError(
                f"{_KEY}: the template cannot render roles "
                f"{[message['role'] for message in messages]}: {error}"
            ) from error
        return str(text)

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        encoded = self._tokenizer(
            clean_text(text), add_special_tokens=False, split_special_tokens=not special
        )
        return tuple(encoded["input_ids"])

    def _encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> tuple[int, ...]:
        return tuple(
            token_id
            for text, is_content in pieces
            for token_id in self._encode(text, special=not is_content)
        )

    def _renders_tools(self) -> bool:
        parameters = {"type": "object", "properties": {}}
        function = {"name": _PROBE, "description": "", "parameters": parameters}
        call = {"id": "0", "type": "function", "function": {"name": _PROBE, "arguments": {}}}
        try:
            prompt = self._render([_ASKED], tools=[{"type": "function", "function": function}])
            answered = self._render(
                [
                    _ASKED,
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "content": "", "tool_call_id": "0"},
                ]
            )
        except ConfigError:
            return False
        return _PROBE in prompt and _PROBE in answered

    def _find_stop_tokens(self, glue: Sequence[int]) -> tuple[int, ...]:
        """The template's end-of-turn token and the tokenizer's."""
        ids = [self._tokenizer.eos_token_id]
        if glue and glue[0] in self._tokenizer.all_special_ids:
            ids.append(glue[0])
        return tuple(sorted({token_id for token_id in ids if token_id is not None}))
