"""The tiny policy's tokenizer: byte-level BPE in which every word of the suite is one token.

Names never carry a space, so a name is the same token wherever it stands, and copying it is
copying one token. Words of sentences and symbols may carry the space that follows them, which
keeps sequences short. Everything else falls back to bytes: any text round-trips.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from arise.tasks.shellworld.episode import SYSTEM_PROMPT
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.skills import all_frames, all_sentences
from arise.tasks.shellworld.vocabulary import ENGLISH, SHELL_TEXTS
from arise.tasks.shellworld.words import NAMES, VERBS

END = "<|end|>"
PAD = "<|pad|>"
SPECIAL = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Role token, content, end token: append-only, since a message's text never depends on another."""

_FRAGMENTS = (
    "awk -F, '{s+=$",
    "} END {print s}' ",
    " | wc -l",
    " > ",
    "sort -u ",
    "sed -i s/",
    "grep -h ",
    "[exit ",
    "[ok]",
    "=.*/",
)
_SPACED = (".txt", ".csv", ".sh", ".md", ".conf", ".log", ".tmp", ".out", ".dat", *":,.;/=?]")


def _corpus() -> str:
    parts = [
        SYSTEM_PROMPT,
        "Skills:",
        *all_sentences(),
        *all_frames(),
        *ENGLISH,
        *VERBS,
        *SHELL_TEXTS,
    ]
    for split in ("train", "unseen"):
        for mix in ("conjunctive", "single"):
            for spec in generate_tasks(split, 600, 7, mix):
                parts += [spec.instruction, *spec.plan.solution(), spec.plan.check]
                parts += spec.draft.files.values()
    return "\n".join(parts)


def sentence_words() -> list[str]:
    """All words that are not names, in lower case and as they stand in the texts."""
    found = set(re.findall(r"[A-Za-z]+", _corpus()))
    return sorted((found | {word.lower() for word in found}) - set(NAMES))


def _pattern(words: Sequence[str]) -> str:
    """Splits text into pieces that are tokens, or that fall back to bytes."""
    fragments = "|".join(re.escape(piece) for piece in _FRAGMENTS)
    spaced = "|".join(re.escape(piece) for piece in sorted(_SPACED, key=len, reverse=True))
    longest_first = "|".join(sorted(words, key=lambda word: (-len(word), word)))
    # The engine behind `Regex` knows `(?!`, so a word is never cut out of a longer one.
    return (
        rf"{fragments}|(?:{spaced})(?: (?![>|]))?|(?:{longest_first})(?![A-Za-z]) ?"
        r"|[A-Za-z]+|\d|\s|[^\sA-Za-z\d]"
    )


def _byte_level(text: str) -> str:
    """`text` in the printable alphabet that byte-level BPE stands bytes for."""
    ((piece, _),) = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(text)
    return str(piece)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, a function of the suite's texts alone."""
    words = sentence_words()
    pieces = [*_FRAGMENTS, *NAMES]
    pieces += [piece + space for piece in (*_SPACED, *words) for space in ("", " ")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = dict.fromkeys([*SPECIAL, *alphabet, *(_byte_level(piece) for piece in pieces)])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Whole pieces are looked up before merging, so the list of merges can be empty.
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pattern(words)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=list(SPECIAL[2:]),
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer saved in `folder`."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode_messages(
    tokenizer: Any, messages: Sequence[tuple[str, str]], *, reply: bool = False
) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them are the assistant's to generate.

    Args:
        tokenizer: From `build_tokenizer`.
        messages: Role and content.
        reply: Whether to open the assistant's next reply.
    """
    end = tokenizer.convert_tokens_to_ids(END)
    ids: list[int] = []
    generated: list[bool] = []
    for role, content in messages:
        body = tokenizer(content, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ids += [tokenizer.convert_tokens_to_ids(f"<|{role}|>"), *body, end]
        generated += [False, *[role == "assistant"] * (len(body) + 1)]
    if reply:
        ids.append(tokenizer.convert_tokens_to_ids("<|assistant|>"))
        generated.append(False)
    return ids, generated
