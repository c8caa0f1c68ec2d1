"""Trajectories in the Agent Trajectory Interchange Format (ATIF).

A document has one step for the task and one for each model call, with token ids and
log-probabilities in its metrics. `arise.tasks.prior_context` reads such documents.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from arise.agents.toolcalls import split_reasoning
from arise.types import Trajectory, Turn

SCHEMA = "ATIF-v1.7"


def to_atif(trajectory: Trajectory, *, agent: str, model: str) -> dict[str, Any]:
    """One trajectory as an ATIF document.

    A row after the first one begins with a step that says so in its `extra`, since what the model
    saw is then in no earlier step.

    Args:
        trajectory: Any trajectory.
        agent: Name of the harness.
        model: Name of the model.
    """
    steps: list[dict[str, Any]] = [
        {"step_id": 1, "source": "user", "message": trajectory.instruction}
    ]
    steps += [
        _step(number, turn, is_first=number == 2)
        for number, turn in enumerate(trajectory.turns, start=2)
    ]
    report = trajectory.harness
    return {
        "schema_version": SCHEMA,
        "session_id": f"{trajectory.task_id}-{trajectory.rollout}",
        "agent": {"name": agent, "version": version("arise"), "model_name": model},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": report.prompt_tokens,
            "total_completion_tokens": report.completion_tokens,
            "total_steps": len(steps),
            "extra": {
                "task_reward": trajectory.task_reward,
                "finish_reason": str(trajectory.finish_reason),
            },
        },
    }


def _step(number: int, turn: Turn, *, is_first: bool) -> dict[str, Any]:
    reasoning, message = split_reasoning(turn.text)
    step: dict[str, Any] = {"step_id": number, "source": "agent", "message": message.strip()}
    if reasoning:
        step["reasoning_content"] = reasoning
    if turn.action is not None:
        call_id = f"call_{number}"
        step["tool_calls"] = [
            {
                "tool_call_id": call_id,
                "function_name": "execute",
                "arguments": {"command": turn.action},
            }
        ]
        step["observation"] = {
            "results": [{"source_call_id": call_id, "content": turn.observation}]
        }
    elif turn.observation:
        step["observation"] = {"results": [{"content": turn.observation}]}
    if turn.token_ids:
        step["metrics"] = {
            "completion_tokens": len(turn.token_ids),
            "completion_token_ids": list(turn.token_ids),
            "logprobs": list(turn.logprobs),
            "extra": {"added_prompt_token_ids": list(turn.prompt_token_ids)},
        }
    if turn.starts_row and not is_first:
        step["extra"] = {"starts_row": True}
    return step
