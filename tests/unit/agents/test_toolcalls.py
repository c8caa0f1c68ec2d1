"""Tool calls as policies write them, the awkward ones first."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.agents.toolbox import SCHEMAS, check_arguments
from arise.agents.toolcalls import BrokenCall, ToolCall, parse_reply, split_reasoning
from harnesses import call


def calls(text: str) -> list[ToolCall | BrokenCall]:
    return list(parse_reply(text, schemas=SCHEMAS).calls)


LS = ToolCall(name="bash", arguments={"command": "ls"})


def test_H01_prose_after_the_json_is_no_part_of_the_call() -> None:
    text = '<tool_call>\n{"name":"bash","arguments":{"command":"ls"}}\n\nI will list.</tool_call>!'
    parsed = parse_reply(text, schemas=SCHEMAS)
    assert parsed.calls == (LS,)
    assert parsed.content == "I will list.!"


@pytest.mark.parametrize(
    "text",
    [
        call("bash", '{"command":"echo \'</tool_call>\' > f"}'),
        "<tool_call><function=bash>\n<parameter=command>\necho '</tool_call>' > f\n</parameter>\n"
        "</function></tool_call>",
    ],
)
def test_H02_the_closing_tag_inside_an_argument_is_text(text: str) -> None:
    assert calls(text) == [ToolCall(name="bash", arguments={"command": "echo '</tool_call>' > f"})]


def test_H03_several_calls_and_empty_arguments() -> None:
    text = "".join(call("bash", arguments) for arguments in ('{"command":"ls"}', '""', "null"))
    assert calls(text) == [LS, *[ToolCall(name="bash", arguments={})] * 2]
    assert calls('<tool_call>{"name":"bash"}</tool_call>') == [ToolCall(name="bash", arguments={})]
    assert check_arguments("bash", {}) == "bash: the argument 'command' is missing"


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>[{"name":"bash","arguments":{"command":"ls"}}]</tool_call>',
        '<tool_call>{"name":"bash","arguments":"{\\"command\\":\\"ls\\"}"}</tool_call>',
        '<tool_call>{"name":"bash","parameters":{"command":"ls"}}',
        "<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>",
        "<think>shall I <tool_call>?</think>" + call("bash", '{"command":"ls"}'),
    ],
)
def test_other_notations_of_one_call(text: str) -> None:
    assert calls(text) == [LS]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<tool_call>{"name":"bash","arguments":{"command":"ls}</tool_call>', "invalid JSON"),
        ("<tool_call>ls</tool_call>", "neither"),
        ("<tool_call></tool_call>", "neither"),
        ('<tool_call>{"arguments":{}}</tool_call>', '"name"'),
        ('<tool_call>{"name":"bash","arguments":[1]}</tool_call>', "must be an object"),
        ('<tool_call>{"name":"bash","arguments":"ls"}</tool_call>', "no JSON object"),
        ("<tool_call><function=bash><parameter=command>ls</function></tool_call>", "no end"),
        ("<tool_call><function=bash>ls</tool_call>", "no </function>"),
        ("<tool_call>" + "[" * 100_000, "nested"),
    ],
)
def test_an_unreadable_call_is_said_and_the_next_one_runs(text: str, problem: str) -> None:
    first, *_, last = calls(text + call("bash", '{"command":"ls"}'))
    assert isinstance(first, BrokenCall)
    assert problem in first.problem
    assert last == LS


def test_reasoning_is_set_apart() -> None:
    assert split_reasoning("<think>\na\n</think>\nb") == ("a", "\nb")
    assert split_reasoning("a</think>b") == ("a", "b")
    assert split_reasoning("<think>cut") == ("cut", "")
    assert split_reasoning("plain") == ("", "plain")


def test_plain_text_parameters_have_the_type_of_the_schema() -> None:
    text = (
        "<tool_call><function=read><parameter=path>\n7\n</parameter>"
        "<parameter=limit>\n7\n</parameter></function></tool_call>"
    )
    assert calls(text) == [ToolCall(name="read", arguments={"path": "7", "limit": 7})]


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.none(), max_size=4))
def test_any_arguments_survive(arguments: dict[str, object]) -> None:
    text = f"so {call('bash', json.dumps(arguments, ensure_ascii=False))} done"
    assert calls(text) == [ToolCall(name="bash", arguments=arguments)]


@given(st.text(alphabet='<>tool_call{}"name:,function=parameter/[] \n\\'))
def test_nothing_crashes_the_reader(text: str) -> None:
    for found in calls("<tool_call>" + text):
        assert isinstance(found, ToolCall | BrokenCall)


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("shell", {}, "no tool 'shell'; the tools are bash, read, write, edit, todowrite"),
        ("bash", {"cmd": "ls", "command": "ls"}, "no argument 'cmd'; it takes command, timeout"),
        ("read", {"path": "f", "offset": "2"}, "must be of type integer"),
        ("read", {"path": "f", "offset": True}, "must be of type integer"),
        ("edit", {"path": "f", "old": "", "new": "x"}, "empty"),
        ("todowrite", {"todos": [{"content": "a"}]}, "lacks 'status'"),
        ("todowrite", {"todos": [{"content": "a", "status": "open"}]}, "one of pending"),
        ("todowrite", {"todos": "a"}, "type array"),
    ],
)
def test_wrong_arguments_are_explained(name: str, arguments: dict, problem: str) -> None:
    assert problem in (check_arguments(name, arguments) or "")
