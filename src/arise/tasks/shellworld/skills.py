"""Skill sentences: many wordings of each behaviour, some of them kept out of the warm start.

A wording is a template with alternatives in braces. The held-back templates measure whether the
policy follows the meaning of a sentence, since a reflection model writes its own words.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping

from arise.tasks.shellworld.behaviours import Behaviour

_SLOT = re.compile(r"\{([^}]*)\}")

SEEN: Mapping[Behaviour, tuple[str, ...]] = {
    Behaviour.READ: (
        "Before writing, {read|open|print} {every|each|the} {document|notes file|md file|spec "
        "file} "
        "{named in the task|that the task names|of the task}.",
        "{Read|Open|Look at} the {notes|rules|house rules|document|guide} {first|before you write "
        "anything|before the first write|before any other command}.",
        "{Always start|Start|Begin} with the {notes|document|rules|md file}, it may "
        "{hold|add|state} "
        "a rule.",
        "Do not {write|act|change anything} until you have {read|seen} the {notes|rules|document}.",
        "{Check|Consult|Study} the {rules|notes|spec} {file|document} before you "
        "{act|write|start}.",
        "Understand the {task|rules} before acting: {read|cat|open} the {notes|document|md file}.",
    ),
    Behaviour.HEED: (
        "When a command fails, {use|take|apply} {what|the word|the value} {the error "
        "names|the error "
        "asks for|its message names} in the next command.",
        "After {an error|a failure}, {change|fix|adapt} the command {as the message says|as "
        "the error "
        "says|with the word in the error}.",
        "Never {repeat|rerun} a failed command {unchanged|as it was}, {add|use} the {word|value} "
        "that the {error|message} names.",
        "{Read|Study} the error {message|text|output} and {act on it|do what it asks|follow it}.",
        "If a command {fails|ends with an error}, {look at|read} the {error|message} and {change|"
        "correct} the next command.",
        "When a file is missing, list the folder, and when an error names a {word|value}, use it.",
    ),
    Behaviour.VERIFY: (
        "Check the {written|output|result} file {before you submit|before submit|at the end}.",
        "After {writing|each write|a write}, {print|show|read|open} the {file|output|result} and "
        "{check|inspect|confirm} it.",
        "{Print|Show|Look at|Read} what you wrote before you {submit|finish}.",
        "Never submit before you have {seen|read|checked|verified} the "
        "{output|result|written} file.",
        "{Verify|Confirm|Check} the {result|output|content} with cat {before the end|after "
        "the write|"
        "before you submit}.",
        "A command may {write|leave} a wrong {file|result} without an error, so {look "
        "at|check|read} "
        "the output.",
    ),
    Behaviour.FINISH: (
        "Do every {step|part} of the {task|instruction}, the last one {too|as well}.",
        "Before you submit, {check|make sure} that no {step|part} of the {task|instruction} "
        "is left.",
        "{Carry out|Do|Complete} the {last|final} step of the {instruction|task} before you "
        "submit.",
        "{Complete|Do|Perform} all {steps|parts} that the {task|instruction} asks for.",
        "Work through the {whole|full} {instruction|task}, also what comes after then.",
    ),
    Behaviour.THRIFT: (
        "Do not {repeat|rerun} a command that {worked|succeeded}.",
        "Use as few {commands|turns|steps} as {possible|you can}.",
        "Avoid {useless|needless} commands such as ls.",
        "Submit as soon as the {work|task} is done.",
        "Waste no {turns|commands}, each one must {help|be needed}.",
    ),
}
"""Templates that the warm start draws from."""

HELD_BACK: Mapping[Behaviour, tuple[str, ...]] = {
    Behaviour.READ: (
        "When a task names a {document|guide}, {print|read} it before any {output|file} is made.",
        "Rules may stand only in the notes, so look there first.",
        "{Begin|Start} by reading the file with the house rules.",
    ),
    Behaviour.HEED: (
        "Take each failure as a hint and put the named {value|word} into the next try.",
        "Let the error message {tell|show} you what to change in the command.",
        "A failed command needs the word from its message before it can work.",
    ),
    Behaviour.VERIFY: (
        "Inspect {every|each} file you made, and only then {finish|submit}.",
        "Make sure that the result is right by reading the file again.",
        "No error does not mean a right result: show the file you made.",
    ),
    Behaviour.FINISH: (
        "Do not {forget|leave out} what the task wants at the end.",
        "{Every|Each} sentence of the instruction must be done before submit.",
    ),
    Behaviour.THRIFT: (
        "Stop when everything is done.",
        "Leave out commands whose output you already have.",
    ),
}
"""Templates that only the measurement uses."""

NEUTRAL: tuple[str, ...] = (
    "Use {lower case|short names} for {new files|file names}.",
    "Keep {commands|replies} {short|simple}.",
    "Work in the current folder.",
    "Do not use the network.",
    "Prefer {standard|simple|common} tools.",
    "Leave {other|unrelated} files as they are.",
    "{Think|Plan} before you reply.",
    "Use one command in each reply.",
    "Never ask {questions|the user}.",
    "The shell is bash.",
    "Be {polite|calm|brief|patient}.",
    "Write plain text without color.",
    "Do not install {packages|programs}.",
    "Quote names that have spaces in them.",
    "{Stay|Remain} in the folder app.",
    "Take the names from the task.",
)
"""Templates of advice that changes nothing."""

_FRAMES = (
    "{}",
    "{}",
    "{}",
    "{}",
    "Remember: {}",
    "In this shell, {}",
    "When working on files, {}",
    "{} This matters.",
    "{} This saves time.",
    "It helps to know this: {}",
)


def wordings(template: str) -> list[str]:
    """All sentences of a template."""
    parts = _SLOT.split(template)
    # re.split alternates plain text and slots.
    options = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*options)]


def draw(rng: random.Random, templates: tuple[str, ...]) -> str:
    """One wording: a template first, so that long templates do not crowd out short ones."""
    template = rng.choice(templates)
    return _SLOT.sub(lambda slot: rng.choice(slot.group(1).split("|")), template)


def framed(rng: random.Random, sentence: str) -> str:
    """The sentence, sometimes with words around it that mean nothing."""
    frame = rng.choice(_FRAMES)
    if frame.endswith(", {}"):
        sentence = sentence[0].lower() + sentence[1:]
    return frame.format(sentence)


def all_sentences() -> list[str]:
    """Every sentence that could be drawn, without frames."""
    banks = (*SEEN.values(), *HELD_BACK.values(), NEUTRAL)
    return [text for bank in banks for template in bank for text in wordings(template)]


def all_frames() -> tuple[str, ...]:
    """The words that may stand around a sentence."""
    return tuple(sorted(set(_FRAMES)))
