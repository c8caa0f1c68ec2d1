"""The ways in which each behaviour goes missing, and what to advise against each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arise.tasks.shellworld.behaviours import Behaviour


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way of lacking a behaviour.

    Attributes:
        name: Short name.
        observed: What the judge writes about a trace that shows it.
        ladder: Skill texts for agents that fail in this way, each more concrete than the last.
    """

    name: str
    observed: str
    ladder: tuple[str, ...]


LADDERS: Mapping[Behaviour, tuple[Mode, ...]] = {
    Behaviour.READ: (
        Mode(
            name="never",
            observed="nothing reads the document that the task names",
            ladder=(
                "Start with the document that the task names: read it, then write.",
                "Use cat on the document that the task names as your first command, it may hold "
                "a rule.",
                "The first command is cat with the md file of the task. Take the word that it "
                "states and use it in the command that writes.",
            ),
        ),
        Mode(
            name="late",
            observed="a file is written before the document is read",
            ladder=(
                "Never write before you have seen the document of the task.",
                "Open the document with cat in the first command, only then write any file.",
                "The first command is cat with the md file, the second one may write. Use the "
                "word from the notes in it.",
            ),
        ),
    ),
    Behaviour.HEED: (
        Mode(
            name="repeated",
            observed="the failed command is repeated unchanged",
            ladder=(
                "Never run a failed command again before you have changed it as the error says.",
                "The same command fails again: read the error, take the word that it names and "
                "add it.",
                "When a command ends with an error, take the last word of the message and put it "
                "into the next command.",
            ),
        ),
        Mode(
            name="gave_up",
            observed="the agent submits right after a failed command",
            ladder=(
                "Never submit after an error, change the command and run it.",
                "The task is not done when the last command failed: use the word from its "
                "message and run it again.",
                "Submit only after a command without an error. If the last one failed, add the "
                "word that its message names and run it again.",
            ),
        ),
        Mode(
            name="unlisted",
            observed="the missing file is not looked for in the folder",
            ladder=(
                "When a file is missing, look at the folder with ls and use the name you see.",
                "After a missing file, the next command is ls: find the new name of the file "
                "there.",
                "After No such file, look for another name of the file: use ls, take the name "
                "with the same first word, and run the command with it.",
            ),
        ),
        Mode(
            name="ignored",
            observed="the next command leaves out what the error names",
            ladder=(
                "Add the word that the error message names to the command.",
                "Find the word that the error asks for, and write the next command with exactly "
                "this word.",
                "The last word of the error message is the value: put it at the end of the same "
                "command, or into the script with sed.",
            ),
        ),
    ),
    Behaviour.VERIFY: (
        Mode(
            name="never",
            observed="nothing is looked at after the result is written",
            ladder=(
                "After the last write, print the output file and read it.",
                "Use cat on the output file as the last command before submit, a wrong result "
                "shows there.",
                "The command after a write is cat with the output file. If the file names a "
                "word, add this word to the command and write it again.",
            ),
        ),
        Mode(
            name="early",
            observed="the result is looked at only before it is written",
            ladder=(
                "Check the output file after the write, not before it.",
                "Write first, then use cat on the output file, then submit.",
                "The command after the last write is cat with the same file. If it shows a word "
                "to use, add the word and write again.",
            ),
        ),
        Mode(
            name="elsewhere",
            observed="other files are looked at, not the written result",
            ladder=(
                "Check the file that you wrote, not the input file.",
                "Take the name of the file that the last command wrote, and use cat on it before "
                "you submit.",
                "The output file is the one that the command wrote: use cat on it and read each "
                "line before submit.",
            ),
        ),
    ),
    Behaviour.FINISH: (
        Mode(
            name="submitted",
            observed="the agent submits without the last step",
            ladder=(
                "Read the instruction again before submit and do the step that is left.",
                "Look for then and at the end in the instruction: what follows is one more "
                "command.",
                "After the result is right, run one more command: write the log file or remove "
                "the tmp file that the last sentence names, then submit.",
            ),
        ),
        Mode(
            name="cut",
            observed="the episode ends before the last step is reached",
            ladder=(
                "Do the last step of the instruction soon, before your turns end.",
                "Waste no turn: write the result, check it once, then do what the last sentence "
                "asks for.",
                "Keep one turn for the last sentence of the instruction: write the log file or "
                "remove the tmp file that it names, then submit.",
            ),
        ),
    ),
    Behaviour.THRIFT: (
        Mode(
            name="repeated",
            observed="the command before is repeated",
            ladder=(
                "Never run the same command again after it worked.",
                "When a command worked, do the next step, never the same one again.",
                "Look at your last command before each reply: if it worked, the next one must be "
                "another, or submit.",
            ),
        ),
        Mode(
            name="idle",
            observed="the folder is listed without need",
            ladder=(
                "Do not list the folder with ls when no file is missing.",
                "The task names all files, so ls is useless until an error says that a file is "
                "missing.",
                "Use ls only after the message No such file, every other turn is for a read, a "
                "write or a check.",
            ),
        ),
        Mode(
            name="open",
            observed="the agent never submits",
            ladder=(
                "Submit when the last step is done, your turns end soon.",
                "After the check of the result, the next reply is submit.",
                "Read, write, check the result once, then reply submit: more commands do not help.",
            ),
        ),
    ),
}
"""Per behaviour, the modes in the order in which ties are broken."""
