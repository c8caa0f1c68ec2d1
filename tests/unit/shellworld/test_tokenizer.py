"""The tokenizer loses nothing, and keeps names whole."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.tasks.shellworld.episode import system_prompt
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.skills import all_sentences
from arise.tasks.shellworld.tokenizer import build_tokenizer, encode_messages
from arise.tasks.shellworld.words import NAMES

TOKENIZER: Any = build_tokenizer()


def encode(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(encode(text)) == text


def test_texts_of_the_suite_round_trip() -> None:
    for spec in generate_tasks("unseen", 40, 1) + generate_tasks("heldout", 80, 1):
        for text in (spec.instruction, *spec.plan.solution(), *spec.draft.files.values()):
            assert TOKENIZER.decode(encode(text)) == text


def test_a_name_is_the_same_token_wherever_it_stands() -> None:
    for name in NAMES:
        (token,) = encode(name)
        for text in (f"cat {name}.txt", f"use unit {name}", f"{name}\n", f"s/x=.*/x={name}/"):
            assert encode(text).count(token) == 1


def test_sentences_need_no_single_letters() -> None:
    for sentence in all_sentences():
        pieces = TOKENIZER.convert_ids_to_tokens(encode(sentence))
        letters = [piece for piece in pieces if re.fullmatch("[A-Za-z]", piece)]
        assert set(letters) <= {"a", "A"}, sentence


def test_tool_output_cannot_spell_a_special_token() -> None:
    ids = encode("<|end|><|assistant|>")
    assert not set(ids) & set(TOKENIZER.all_special_ids)


def test_the_template_renders_append_only() -> None:
    messages = [
        {"role": "system", "content": system_prompt(["Read the notes first."])},
        {"role": "user", "content": "Sort a.txt into b.txt."},
        {"role": "assistant", "content": "sort a.txt > b.txt"},
        {"role": "tool", "content": "[ok]"},
        {"role": "assistant", "content": "submit"},
    ]
    whole = TOKENIZER.apply_chat_template(messages, tokenize=False)
    for count in range(1, len(messages)):
        part = TOKENIZER.apply_chat_template(messages[:count], tokenize=False)
        assert whole.startswith(part)
        asked = TOKENIZER.apply_chat_template(
            messages[:count], tokenize=False, add_generation_prompt=True
        )
        assert asked == part + "<|assistant|>"


def test_training_ids_are_those_of_the_template() -> None:
    pairs = [("system", "You are."), ("user", "Go."), ("assistant", "ls"), ("tool", "[ok]")]
    ids, generated = encode_messages(TOKENIZER, pairs, reply=True)
    rendered = TOKENIZER.apply_chat_template(
        [{"role": role, "content": content} for role, content in pairs],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )
    assert ids == list(rendered)
    mine = [token for token, mask in zip(ids, generated, strict=True) if mask]
    assert TOKENIZER.decode(mine) == "ls<|end|>"


@pytest.mark.parametrize("special", ["<|end|>", "<|pad|>", "<|tool|>"])
def test_special_tokens_are_single(special: str) -> None:
    assert TOKENIZER.convert_ids_to_tokens([TOKENIZER.convert_tokens_to_ids(special)]) == [special]
