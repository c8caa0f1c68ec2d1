"""Replies of the Terminus-2 format, right, tolerated and wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.agents.terminus2.json_reply import parse_json
from arise.agents.terminus2.reply import Keystrokes, TerminalReply
from arise.agents.terminus2.terminal import limit_output
from arise.agents.terminus2.xml_reply import parse_xml


def as_json(**fields: object) -> str:
    return json.dumps({"analysis": "a", "plan": "p", "commands": [], **fields})


LS = {"keystrokes": "ls\n", "duration": 0.1}
SENT = (Keystrokes(keys="ls\n", duration_s=0.1),)


def test_a_right_reply_has_no_warning() -> None:
    assert parse_json(as_json(commands=[LS])) == TerminalReply(commands=SENT)
    text = (
        "<response><analysis>a</analysis><plan>p</plan><commands>"
        '<keystrokes duration="0.1">ls\n</keystrokes></commands></response>'
    )
    assert parse_xml(text) == TerminalReply(commands=SENT)


@pytest.mark.parametrize(
    ("value", "complete"),
    [(True, True), ("true", True), ("1", True), ("Yes", True), (False, False), ("no", False)],
)
def test_task_complete_in_its_spellings(value: object, complete: bool) -> None:
    assert parse_json(as_json(task_complete=value)).is_complete is complete


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("Sure: " + as_json(commands=[LS]), "before"),
        (as_json(commands=[LS]) + " done", "after"),
        (as_json(commands=[LS])[:-1], "closing brace"),
        (as_json(commands=[{**LS, "why": 1}]), "unknown fields: why"),
        (json.dumps({"plan": "p", "analysis": "a", "commands": [LS]}), "order plan, analysis"),
        (as_json(analysis=1, commands=[LS]), "analysis should be text"),
    ],
)
def test_what_is_tolerated_is_warned_of(text: str, warning: str) -> None:
    reply = parse_json(text)
    assert reply.commands == SENT
    assert len(reply.warnings) == 1
    assert warning in reply.warnings[0]


def test_durations_default_to_one_second() -> None:
    reply = parse_json(
        as_json(commands=[{"keystrokes": "a\n"}, {"keystrokes": "", "duration": "x"}])
    )
    assert [command.duration_s for command in reply.commands] == [1.0, 1.0]
    assert [w.split(";")[0] for w in reply.warnings] == [
        "command 1 has no duration",
        "command 2 has an unusable duration",
    ]


def test_keys_that_run_together_are_warned_of() -> None:
    commands = [{**LS, "keystrokes": keys} for keys in ("a", "", "b\n", "c")]
    (warning,) = parse_json(as_json(commands=commands)).warnings
    assert warning.startswith("command 1:")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ls", "no JSON object"),
        ('{"analysis": "a", "plan": nope, "commands": []}', "invalid JSON"),
        ('{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls', "invalid JSON"),
        ('{"analysis": "a", "plan": "p"}', "missing: commands"),
        (as_json(commands="ls"), "must be an array"),
        (as_json(commands=["ls"]), "command 1 must be an object"),
        (as_json(commands=[{"duration": 1}]), "command 1 needs keystrokes"),
        ("{" * 100_000, "invalid JSON"),
    ],
)
def test_what_is_broken_executes_nothing(text: str, error: str) -> None:
    reply = parse_json(text)
    assert error in reply.error
    assert reply.commands == ()


def test_wrong_commands_of_a_complete_task_do_not_matter() -> None:
    reply = parse_json(as_json(commands=["ls"], task_complete=True))
    assert (reply.is_complete, reply.error, reply.commands) == (True, "", ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls", TerminalReply(error="there is no <response> in the reply")),
        (
            "<response><analysis/><plan></plan><commands/></response>",
            TerminalReply(warnings=("<commands> is empty, so nothing was sent",)),
        ),
        (
            "<response><analysis>a</analysis><plan/><task_complete>true</task_complete></response>",
            TerminalReply(is_complete=True),
        ),
        (
            "<response><analysis>a</analysis><plan/></response>",
            TerminalReply(error="<commands> is missing"),
        ),
        (
            "so <response><plan/><commands><keystrokes>a && b\n</keystrokes></commands>",
            TerminalReply(
                commands=(Keystrokes(keys="a && b\n"),),
                warnings=(
                    "there is text before <response>",
                    "<analysis> is missing",
                    "command 1 has no duration; 1 s was taken",
                ),
            ),
        ),
    ],
)
def test_xml_replies(text: str, expected: TerminalReply) -> None:
    assert parse_xml(text) == expected


def test_entities_stay_as_they_are_with_a_warning() -> None:
    text = (
        "<response><analysis/><plan/><commands>"
        '<keystrokes duration="1">echo &lt;\n</keystrokes></commands></response>'
    )
    reply = parse_xml(text)
    assert reply.commands[0].keys == "echo &lt;\n"
    assert reply.warnings == ("&lt; is sent as it is written, not as the character it names",)


@given(st.lists(st.tuples(st.text(), st.floats(0, 60)), max_size=4), st.booleans())
def test_any_keystrokes_survive_json(commands: list[tuple[str, float]], complete: bool) -> None:
    sent = [{"keystrokes": keys, "duration": s} for keys, s in commands]
    reply = parse_json(as_json(commands=sent, task_complete=complete))
    assert [(c.keys, c.duration_s) for c in reply.commands] == commands
    assert (reply.is_complete, reply.error) == (complete, "")


@given(st.text(alphabet='{}"\\<>/responsecommandskeystrokes \n'))
def test_nothing_crashes_the_readers(text: str) -> None:
    assert isinstance(parse_json(text), TerminalReply)
    assert isinstance(parse_xml(f"<response>{text}"), TerminalReply)


def test_output_keeps_its_ends_in_bytes() -> None:
    assert limit_output("x" * 10_000) == "x" * 10_000
    text = limit_output("é" * 6_000)
    head, line, tail = text.split("\n")
    assert (head, tail) == ("é" * 2_500, "é" * 2_500)
    assert line == "[2000 bytes in the middle left out]"
