"""What the Terminus-2 harness says to the policy."""

from __future__ import annotations

_INTRODUCTION = """\
You solve a task in a Linux terminal. You see the task and what the terminal shows, and answer \
with keystrokes for it; then you see what they led to, and so on.
"""
_RULES = """\
- Keystrokes are typed exactly as written. A command runs only if a newline ends it.
- Keys of tmux can be named, each in keystrokes of its own: C-c for Ctrl+C, C-d for Ctrl+D.
- The duration is the number of seconds to wait before the next keystrokes. Take 0.1 for what is \
immediate (cd, ls, echo), 1.0 for what takes a moment (a compiler, find), more for slow programs, \
and 60 at most. Prefer to wait too short: empty keystrokes with a duration wait on.
- No commands at all means to look at the terminal again.
- Say that the task is complete only when it is; you will be asked to say it a second time.
"""
_JSON = """\
Answer with one JSON object and nothing else:

{
  "analysis": "what the terminal shows, what is done, what is missing",
  "plan": "what you do next and what you expect of it",
  "commands": [
    {"keystrokes": "ls -la\\n", "duration": 0.1},
    {"keystrokes": "cd project\\n", "duration": 0.1}
  ],
  "task_complete": false
}

analysis, plan and commands are required; without task_complete the task goes on.
"""
_XML = """\
Answer with these tags and nothing else:

<response>
<analysis>what the terminal shows, what is done, what is missing</analysis>
<plan>what you do next and what you expect of it</plan>
<commands>
<keystrokes duration="0.1">ls -la
</keystrokes>
<keystrokes duration="0.1">cd project
</keystrokes>
</commands>
<task_complete>false</task_complete>
</response>

analysis, plan and commands are required; without task_complete the task goes on. Text between the \
tags is taken as it is: write <, > and & themselves, not their entities.
"""
_FORMS = {"json": _JSON, "xml": _XML}
_AGAIN = {
    "json": '"task_complete": true',
    "xml": "<task_complete>true</task_complete>",
}


def first_message(instruction: str, terminal: str, *, notation: str) -> str:
    """Rules, task, and the state of the terminal."""
    return (
        f"{_INTRODUCTION}\n{_FORMS[notation]}\n{_RULES}\n"
        f"Task Description:\n{instruction}\n\nCurrent terminal state:\n{terminal}"
    )


def confirmation(terminal: str, *, notation: str) -> str:
    """The question after the first time that the task is called complete."""
    return (
        f"Current terminal state:\n{terminal}\n\nIs the task really complete? It will be graded as "
        f"it stands, and nothing can be changed afterwards. If so, answer with {_AGAIN[notation]} "
        "once more."
    )


def unreadable(error: str, warnings: tuple[str, ...]) -> str:
    """Nothing of the reply was executed, and why."""
    lines = [f"ERROR: {error}", *(f"WARNING: {warning}" for warning in warnings)]
    text = "\n".join(lines)
    return f"Your reply could not be read, so nothing was executed:\n{text}\n\nAnswer again."


def with_warnings(terminal: str, warnings: tuple[str, ...]) -> str:
    """What the terminal shows, after what was tolerated in the reply."""
    if not warnings:
        return terminal
    lines = "\n".join(f"WARNING: {warning}" for warning in warnings)
    return f"{lines}\n\n{terminal}"


def cut_off(max_tokens: int) -> str:
    """The reply ran into the output limit."""
    return (
        f"ERROR: your reply was cut off after {max_tokens} tokens, so nothing of it was executed. "
        "Answer again, in smaller parts."
    )


SUMMARY = (
    "Your memory is nearly full. Write down, for an agent that goes on without having seen any of "
    "this: the task, what was done and what it led to, the files and commands that matter, what "
    "is left to do, and what to beware of."
)


def questions(instruction: str, summary: str, terminal: str) -> str:
    """Asks the agent that takes over what it still has to know."""
    return (
        f"You take over this task from another agent.\n\nTask Description:\n{instruction}\n\n"
        f"Its notes:\n{summary}\n\nCurrent terminal state:\n{terminal}\n\n"
        "Ask it, in a numbered list, what you have to know and the notes do not say."
    )


def answers(asked: str) -> str:
    """Puts those questions to the agent that leaves."""
    return f"The agent that goes on asks:\n\n{asked}\n\nAnswer each question as exactly as you can."


def handover(opening: str, summary: str, asked: str, answered: str) -> str:
    """The first message of the new history."""
    return (
        f"{opening}\n\nYou go on where another agent stopped. Its notes:\n{summary}\n\n"
        f"Your questions:\n{asked}\n\nIts answers:\n{answered}"
    )
