"""The tool agent: replies call tools by name; a reply without a call ends the episode."""

from __future__ import annotations

import json
from typing import Any

from arise.agents.harness import Harness, require_limits
from arise.agents.recording import PolicySession, with_skills
from arise.agents.shell import clip
from arise.agents.toolbox import SCHEMAS, TOOLS, Toolbox, ToolResult
from arise.agents.toolcalls import BrokenCall, ToolCall, parse_reply, shown_call
from arise.environments.base import Environment
from arise.tasks.prior_context import with_prior_context
from arise.types import FinishReason, Task

_NOTATION = """\
# Tools

You call a tool by writing, for each call, one JSON object between tags:
<tool_call>
{"name": "<tool>", "arguments": {<arguments>}}
</tool_call>

The tools, one JSON object a line:
"""


class ToolAgent(Harness):
    """An agent loop by function calls: bash, read, write, edit, todowrite.

    The chat template writes the tools' definitions if it knows how; else they stand in the system
    prompt, in the notation of Hermes. A call that cannot be run is answered with what is wrong; it
    costs a turn and counts in `rollout/tool_error_rate`.

    Args:
        system_prompt: First message; active skills are appended to it.
        max_turns: Most replies in an episode.
        max_output_tokens: Most tokens in a reply.
        command_timeout_s: Limit on one call, in seconds; its processes are killed.
        max_observation_chars: A longer result of a call is cut in the middle.
        observation_role: Chat role of results, `"tool"` or `"user"`.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(
        self,
        *,
        system_prompt: str,
        max_turns: int,
        max_output_tokens: int,
        command_timeout_s: float,
        max_observation_chars: int,
        observation_role: str,
    ) -> None:
        require_limits(
            max_turns=max_turns,
            max_output_tokens=max_output_tokens,
            max_observation_chars=max_observation_chars,
            command_timeout_s=command_timeout_s,
        )
        self.observation_role = observation_role
        self._system_prompt = system_prompt
        self._max_turns = max_turns
        self._max_output_tokens = max_output_tokens
        self._command_timeout_s = command_timeout_s
        self._max_observation_chars = max_observation_chars

    async def run(
        self, task: Task, session: PolicySession, environment: Environment
    ) -> FinishReason:
        """Reply, call, observe, until a reply calls nothing or a limit is hit."""
        prompt = self._system_prompt
        tools: tuple[dict[str, Any], ...] = TOOLS
        if not session.renderer.renders_tools:
            prompt, tools = f"{prompt}\n\n{_NOTATION}{definitions()}", ()
        session.begin(
            [
                {"role": "system", "content": with_skills(prompt, session.skills)},
                *with_prior_context(task.prior, task.instruction),
            ],
            tools=tools,
        )
        toolbox = Toolbox(environment, command_timeout_s=self._command_timeout_s)
        for _ in range(self._max_turns):
            reply = await session.reply(max_tokens=self._max_output_tokens)
            if reply.limit is not None:
                return reply.limit
            parsed = parse_reply(reply.text, schemas=SCHEMAS)
            if not parsed.calls:
                return FinishReason.SUBMITTED
            await self._answer(parsed.calls, session, toolbox)
        return FinishReason.TURN_LIMIT

    async def _answer(
        self,
        calls: tuple[ToolCall | BrokenCall, ...],
        session: PolicySession,
        toolbox: Toolbox,
    ) -> None:
        """Run the calls of one reply in order; each has its result in the same place."""
        actions = [shown_call(call) for call in calls if isinstance(call, ToolCall)]
        if actions:
            session.act("\n".join(actions))
        results: list[ToolResult] = []
        for call in calls:
            session.num_tool_calls += 1
            if isinstance(call, BrokenCall):
                result = ToolResult(text=f"error: {call.problem}", is_error=True)
            else:
                result = await toolbox.run(call.name, call.arguments)
            session.num_tool_errors += result.is_error
            results.append(result)
        exit_codes = [result.result.exit_code for result in results if result.result is not None]
        session.observe(
            [self.describe(result) for result in results],
            exit_code=exit_codes[-1] if exit_codes else None,
        )

    def describe(self, result: ToolResult) -> str:
        """The result as the model sees it: output, after the exit code of a failed command."""
        execution = result.result
        dropped = execution.dropped_bytes if execution is not None else 0
        text = clip(result.text.rstrip("\n"), self._max_observation_chars, dropped_bytes=dropped)
        if execution is None or execution.exit_code == 0:
            return text or "[ok]"
        head = "[timed out]" if execution.timed_out else f"[exit {execution.exit_code}]"
        return f"{head}\n{text}" if text else head


def definitions() -> str:
    """The tools' definitions, one JSON object a line."""
    return "\n".join(json.dumps(tool["function"]) for tool in TOOLS)
