"""The pools that ship with the suite, and the stand-in's criteria."""

import asyncio
import json

from arise.llm.chat import ChatRequest, CriteriaPurpose
from arise.rubrics.criteria_payloads import ExtractionPayload, MergePayload
from arise.rubrics.events import EventType, lifetime_pairs, read_events
from arise.rubrics.pool_file import pool_file
from arise.rubrics.prompting import rubric_views
from arise.tasks.shellworld.oracle_pool import oracle_events
from arise.tasks.shellworld.rules_texts import REQUIREMENTS, recognise
from arise.types import Criterion
from unit.shellworld.rule_requests import READ, REFLECTION, WRITE, trace

RECORDED = pool_file("arise.tasks.shellworld:pools/recorded.jsonl")
ORACLE = pool_file("arise.tasks.shellworld:pools/oracle.jsonl")


def test_the_oracle_pool_is_what_its_command_writes() -> None:
    assert read_events(ORACLE, key="rubrics.pool_path") == oracle_events()


def test_the_recorded_pool_is_a_whole_life_cycle_that_the_stand_in_understands() -> None:
    events = read_events(RECORDED, key="rubrics.pool_path")
    kinds = {event["type"] for event in events}
    assert kinds >= {EventType.CREATED, EventType.ACTIVATED, EventType.HIDDEN, EventType.RETIRED}
    pairs = lifetime_pairs(events)
    assert {recognise(view) for view in rubric_views(pairs)} == set(REQUIREMENTS)
    assert all(pair.skill.state.value == "hidden" and not pair.history for pair in pairs)


def ask(purpose: CriteriaPurpose, payload: object) -> list[dict[str, object]]:
    request = ChatRequest(purpose=purpose, messages=(), payload=payload)
    return json.loads(asyncio.run(REFLECTION.complete(request)).text)["criteria"]


def test_the_stand_in_extracts_what_one_trace_shows_and_the_other_lacks() -> None:
    reads, does_not = trace(READ, WRITE), trace(WRITE)
    payload = ExtractionPayload(current=does_not, reference=reads, covered=())
    (criterion,) = ask(CriteriaPurpose.EXTRACTION, payload)
    assert criterion["criterion"] == REQUIREMENTS[0].pass_condition
    assert criterion["quote"] in [step.command for step in reads.steps]
    same = ExtractionPayload(current=reads, reference=reads, covered=())
    assert ask(CriteriaPurpose.EXTRACTION, same) == []


def test_the_stand_in_merges_equal_wordings() -> None:
    first = Criterion(id=0, text="Looks.", weight=1.0, quote="cat a")
    again = Criterion(id=0, text="looks.", weight=1.0, quote="cat b")
    payload = MergePayload(instruction="", criteria=(first, again), max_criteria=4)
    (kept,) = ask(CriteriaPurpose.MERGE, payload)
    assert kept == {"quote": "cat a", "criterion": "Looks.", "weight": 1.0}
