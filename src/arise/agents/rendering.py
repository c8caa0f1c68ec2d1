"""Chat rendering as token ids, append-only and exact.

The first prompt is rendered once; afterwards a conversation only *grows*: what the template puts
between an assistant's reply and its next turn (the "glue") is learned from the template itself,
and generated tokens are never decoded and encoded again. Contents are tokenised apart from the
template's own text, with special tokens off, so tool output that spells `<|im_end|>` stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from arise.errors import ConfigError
from arise.llm.text import clean_text

_MARKS = ("arisemarkalpha", "arisemarkbeta", "arisemarkgamma")
_KEY = "model.loader.chat_template"


class ChatRenderer:
    """Turns messages into token ids for one tokenizer and chat template.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        observation_role: Role of tool output, `"user"` or `"tool"`; the template must know it.

    Attributes:
        stop_token_ids: Tokens that end a reply, sorted.

    Raises:
        ConfigError: The template is missing, fails, or drops or repeats a message.

    Example:
        >>> prompt = renderer.start([{"role": "user", "content": "list files"}])
        >>> more = renderer.extend("a.txt", last_token_id=reply_ids[-1])
    """

    def __init__(self, tokenizer: Any, *, observation_role: str) -> None:
        self._tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"the tokenizer has no chat template; set {_KEY} to a Jinja template file"
            )
        before, after = self._learn_glue(observation_role)
        self._glue_before = self._encode(before, special=True)
        self._glue_after = self._encode(after, special=True)
        self.stop_token_ids = self._find_stop_tokens()

    def _learn_glue(self, role: str) -> tuple[str, str]:
        """What the template writes between a reply and an observation, and after it."""
        asked, replied, observed = _MARKS
        text = self._render(
            [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": replied},
                {"role": role, "content": observed},
            ]
        )
        if text.count(replied) != 1 or text.count(observed) != 1:
            raise ConfigError(
                f"{_KEY}: the template does not write each assistant and {role} message exactly "
                "once; choose another template or harness.observation_role (user or tool)"
            )
        between, after = text.split(replied, 1)[1].split(observed, 1)
        return between, after

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
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

    def start(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of the first prompt, up to where the model's reply begins.

        Args:
            messages: System and user messages; at most three.

        Raises:
            ConfigError: The template refuses, drops or repeats one of them.
        """
        assert len(messages) <= len(_MARKS)
        marked = [
            {"role": message["role"], "content": mark}
            for message, mark in zip(messages, _MARKS, strict=False)
        ]
        contents = dict(zip(_MARKS, (message["content"] for message in messages), strict=False))
        text = self._render(marked)
        for mark in contents:
            if text.count(mark) != 1:
                raise ConfigError(
                    f"{_KEY}: the template does not write each message of "
                    f"{[message['role'] for message in messages]} exactly once"
                )
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(_MARKS)})", text):
            ids += (
                self._encode(contents[piece], special=False)
                if piece in contents
                else self._encode(piece, special=True)
            )
        return tuple(ids)

    def extend(self, observation: str, *, last_token_id: int | None) -> tuple[int, ...]:
        """Token ids to append after a reply: end of turn, observation, start of the next reply.

        Args:
            observation: What the environment answered.
            last_token_id: The reply's last generated token; the end-of-turn token is not written
                a second time if the model generated it.
        """
        glue = self._glue_before
        if glue and last_token_id == glue[0]:
            glue = glue[1:]
        return (*glue, *self._encode(observation, special=False), *self._glue_after)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated tokens without special tokens."""
        # Clean-up would rewrite commands: "ls ." to "ls.".
        text = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    def _find_stop_tokens(self) -> tuple[int, ...]:
        """The template's end-of-turn token and the tokenizer's."""
        ids = [self._tokenizer.eos_token_id]
        first = self._glue_before[:1]
        if first and first[0] in self._tokenizer.all_special_ids:
            ids.append(first[0])
        return tuple(sorted({token_id for token_id in ids if token_id is not None}))
