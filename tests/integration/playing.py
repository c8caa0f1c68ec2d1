"""Rollouts of real task folders in real sandboxes, by a policy whose replies are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.agents.rendering import ChatRenderer
from arise.agents.shell import ShellAgent
from arise.inference.base import SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.modules.loading import RandomModel
from arise.types import RolloutFailure, Task, Trajectory

TOKENIZER = RandomModel(
    seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
).tokenizer()


def play(
    tasks: Sequence[Task], replies: Sequence[Sequence[str]], factory: Any
) -> list[Trajectory | RolloutFailure]:
    """One rollout of each task, in which the policy says the replies of the same index."""
    engine = ScriptedEngine(
        script={(index, 0): list(texts) for index, texts in enumerate(replies)},
        encode=lambda text: TOKENIZER(text, add_special_tokens=False)["input_ids"],
        end_token_id=TOKENIZER.eos_token_id,
        max_context_tokens=4000,
    )
    orchestrator = Orchestrator(
        engine=engine,
        environments=factory,
        harness=ShellAgent(
            system_prompt="Act.",
            action_format="raw",
            submit="submit",
            max_turns=6,
            max_output_tokens=64,
            command_timeout_s=10,
            max_observation_chars=1000,
            observation_role="user",
        ),
        renderer=ChatRenderer(TOKENIZER, observation_role="user"),
        context_tokens=4000,
        max_in_flight=None,
        default_timeout_s=20,
        deterministic=True,
        seed=7,
    )
    plan = RolloutPlan(
        tasks=tasks,
        rollouts_per_task=1,
        version=0,
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0),
    )
    try:
        groups = asyncio.run(orchestrator.run(plan))
    finally:
        factory.close()
    return [group.slots[0] for group in groups]
