"""The bank of sentences."""

from __future__ import annotations

import random

from arise.agents.recording import with_skills
from arise.tasks.shellworld.behaviours import CAPABILITY, Behaviour
from arise.tasks.shellworld.episode import SYSTEM_PROMPT, system_prompt
from arise.tasks.shellworld.skills import HELD_BACK, NEUTRAL, SEEN, draw, framed, wordings
from arise.types import Capability, InjectedSkill


def test_every_capability_has_a_behaviour() -> None:
    assert set(CAPABILITY.values()) == set(Capability)
    assert set(SEEN) == set(HELD_BACK) == set(Behaviour)


def test_wordings_by_hand() -> None:
    assert wordings("{Read|Open} the {notes|rules}.") == [
        "Read the notes.",
        "Read the rules.",
        "Open the notes.",
        "Open the rules.",
    ]


def test_there_are_many_wordings_and_held_back_ones_are_others() -> None:
    seen = {text for bank in SEEN.values() for template in bank for text in wordings(template)}
    held = {text for bank in HELD_BACK.values() for template in bank for text in wordings(template)}
    assert len(seen) >= 200
    assert len(held) >= 14
    assert not seen & held
    for behaviour in Behaviour:
        assert len({t for template in SEEN[behaviour] for t in wordings(template)}) >= 12


def test_drawing_gives_wordings_and_frames_keep_them() -> None:
    rng = random.Random(0)
    for bank in (*SEEN.values(), NEUTRAL):
        for _ in range(30):
            sentence = draw(rng, bank)
            assert any(sentence in wordings(template) for template in bank)
            assert sentence[1:] in framed(rng, sentence)


def test_the_prompt_is_the_one_that_the_agent_writes() -> None:
    skills = [
        InjectedSkill(pair_id=3, revision=0, text="Read the notes."),
        InjectedSkill(pair_id=8, revision=2, text="Check the output."),
    ]
    assert system_prompt([skill.text for skill in skills]) == with_skills(SYSTEM_PROMPT, skills)
    assert system_prompt([]) == with_skills(SYSTEM_PROMPT, [])
