"""The pool of the oracle control: the behaviours that the suite is made of, one rubric each.

python -m arise.tasks.shellworld.oracle_pool > src/arise/tasks/shellworld/pools/oracle.jsonl
"""

from __future__ import annotations

import json

from arise.rubrics.events import Event, EventType, new_event
from arise.rubrics.pair import Rubric, RubricSkillPair, Skill
from arise.tasks.shellworld.rules_texts import REQUIREMENTS
from arise.types import Capability


def oracle_events() -> list[Event]:
    """One imported pair for each behaviour, in the order of the stand-in's requirements."""
    pairs = [
        RubricSkillPair(
            id=number,
            title=requirement.title,
            capability=Capability(requirement.capability),
            rubric=Rubric(
                applicability=requirement.applicability,
                fail_condition=requirement.fail_condition,
                pass_condition=requirement.pass_condition,
            ),
            skill=Skill(text=requirement.skill),
            created_at=0,
        )
        for number, requirement in enumerate(REQUIREMENTS, start=1)
    ]
    return [
        new_event(EventType.IMPORTED, 0, pair_id=pair.id, pair=pair.to_dict()) for pair in pairs
    ]


if __name__ == "__main__":
    for event in oracle_events():
        print(json.dumps(event, ensure_ascii=False))
