"""What the offline stand-in says about the five behaviours: requirements, findings, skills.

The wordings recur on purpose: judge and reflection recognise each other's texts by them. Skill
texts use words of the tiny policy's vocabulary only, and no sentence of the warm start's bank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arise.rubrics.payloads import RubricView
from arise.rubrics.proposals import fold
from arise.tasks.shellworld.behaviours import CAPABILITY, Behaviour
from arise.tasks.shellworld.rules_ladders import LADDERS, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One behaviour as a rubric, as findings of a trace, and as guidance.

    Attributes:
        behaviour: What is required.
        title: Title of its pair.
        applicability: When it applies.
        fail_condition: What a trace shows that misses it.
        pass_condition: What a trace shows that meets it.
        gap: The behaviour named in a diagnostic where it is lacking.
        strategy: The behaviour named in a diagnostic where it is shown.
        no_occasion: Why a verdict is not applicable.
        skill: First text of the pair's skill: short and general.
    """

    behaviour: Behaviour
    title: str
    applicability: str
    fail_condition: str
    pass_condition: str
    gap: str
    strategy: str
    no_occasion: str
    skill: str

    @property
    def capability(self) -> str:
        """The capability that the pair is about."""
        return CAPABILITY[self.behaviour].value

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The ways of missing it, and what to advise against each."""
        return LADDERS[self.behaviour]

    def is_named_by(self, rubric: RubricView) -> bool:
        """Whether the title or a condition of `rubric` holds this requirement's wording."""
        return (
            _core(self.title) in fold(rubric.title)
            or _core(self.fail_condition) in fold(rubric.fail_condition)
            or _core(self.pass_condition) in fold(rubric.pass_condition)
        )


def _core(text: str) -> str:
    return fold(text).rstrip(".")


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        behaviour=Behaviour.READ,
        title="Read the named document before writing",
        applicability="The task names a document, such as notes, a guide or rules.",
        fail_condition=(
            "The agent writes a file, or ends, without having read the document that the task "
            "names."
        ),
        pass_condition="The document that the task names is read before the first write.",
        gap="acts without reading the document that the task names",
        strategy="reads the document that the task names before it writes",
        no_occasion="the task names no document",
        skill="Read the document of the task before the first write.",
    ),
    Requirement(
        behaviour=Behaviour.HEED,
        title="Act on what an error message says",
        applicability="A command fails and the agent has another turn.",
        fail_condition=(
            "After a failed command the agent repeats it, submits, or runs a command that leaves "
            "out what the error message names."
        ),
        pass_condition=(
            "After every failed command the next command uses what the error message names, or "
            "looks for the missing file."
        ),
        gap="does not act on what an error message says",
        strategy="changes the next command as the error message says",
        no_occasion="no command failed while there was a turn left to answer it",
        skill="Use what the error message says in the next command.",
    ),
    Requirement(
        behaviour=Behaviour.VERIFY,
        title="Look at the result after writing it",
        applicability="A command of the agent writes a result without an error.",
        fail_condition="No command looks at the written result after it was written.",
        pass_condition="A command looks at the written result after it was written.",
        gap="does not look at the result that it wrote",
        strategy="looks at the result after writing it",
        no_occasion="no command wrote a result",
        skill="Look at the file you wrote before you submit.",
    ),
    Requirement(
        behaviour=Behaviour.FINISH,
        title="Carry out the last step of the instruction",
        applicability="The instruction asks for one more step at its end.",
        fail_condition="No command carries out the step that the instruction asks for at its end.",
        pass_condition="A command carries out the step that the instruction asks for at its end.",
        gap="leaves out the last step of the instruction",
        strategy="carries out the last step of the instruction too",
        no_occasion="the instruction asks for no further step at its end",
        skill="Do the last part of the instruction before you submit.",
    ),
    Requirement(
        behaviour=Behaviour.THRIFT,
        title="Spend no command that brings nothing new",
        applicability="The agent runs at least one command.",
        fail_condition=(
            "The agent repeats the command before, lists the folder without need, or never submits."
        ),
        pass_condition="Every command brings something new, and the agent submits by itself.",
        gap="spends commands that bring nothing new",
        strategy="runs only commands that bring something new, and submits",
        no_occasion="no command was run",
        skill="Waste no command and submit when the task is done.",
    ),
)
"""All that the stand-in understands, one requirement for each behaviour."""


def recognise(rubric: RubricView) -> Requirement | None:
    """The requirement that a rubric's text states.

    Letter case and white space do not matter, nor words around the known phrases. `None` if the
    text states none of the requirements, or more than one.
    """
    found = [requirement for requirement in REQUIREMENTS if requirement.is_named_by(rubric)]
    return found[0] if len(found) == 1 else None


def covered(pool: Iterable[RubricView]) -> dict[Behaviour, int]:
    """The lowest id of a rubric that is about each behaviour, for those that have one."""
    ids: dict[Behaviour, int] = {}
    for rubric in sorted(pool, key=lambda rubric: rubric.id):
        requirement = recognise(rubric)
        if requirement is not None:
            ids.setdefault(requirement.behaviour, rubric.id)
    return ids
