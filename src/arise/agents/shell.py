"""The shell agent: every reply is one command; `submit` ends the episode."""

from __future__ import annotations

import re
from typing import Literal

from arise.agents.harness import Harness, require_limits
from arise.agents.recording import PolicySession, with_skills
from arise.environments.base import Environment, ExecResult
from arise.errors import ConfigError
from arise.tasks.prior_context import with_prior_context
from arise.types import FinishReason, Task

# A block of any language, closed by a fence on a line of its own or by the end of the reply.
_BLOCK = re.compile(
    r"^[ \t]*```([^`\n]*)\n(.*?)(?:^[ \t]*```[ \t]*$|```\s*\Z)", re.DOTALL | re.MULTILINE
)
_LANGUAGES = ("", "bash", "sh", "shell")
_THINKING = re.compile(r"\A.*?</think>[ \t]*$", re.DOTALL | re.MULTILINE)


def clip(text: str, limit: int, *, dropped_bytes: int = 0) -> str:
    """Keep head and tail of a long text and say how much is missing between them.

    Args:
        text: The text; a line in its middle may say that bytes were dropped before.
        limit: Characters to keep.
        dropped_bytes: How many those were; said again if that line is cut out.
    """
    if len(text) <= limit:
        return text
    tail = limit // 2
    head = limit - tail
    missing = f"{len(text) - limit} characters"
    if dropped_bytes:
        missing += f" and {dropped_bytes} bytes"
    return f"{text[:head]}\n[{missing} left out]\n{text[len(text) - tail :]}"


class ShellAgent(Harness):
    """A minimal agent loop for tasks in a shell.

    Args:
        system_prompt: First message; active skills are appended to it.
        action_format: `"raw"`: the whole reply is the command; `"fenced"`: it stands in exactly
            one Markdown code block with the language bash, sh, shell or none.
        submit: The command that ends the episode.
        max_turns: Most replies in an episode.
        max_output_tokens: Most tokens in a reply.
        command_timeout_s: Limit on one command, in seconds; its processes are killed.
        max_observation_chars: Longer output is cut in the middle.
        observation_role: Chat role of tool output, `"user"` or `"tool"`.
    """

    def __init__(
        self,
        *,
        system_prompt: str,
        action_format: Literal["raw", "fenced"],
        submit: str,
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
        if not submit.strip():
            raise ConfigError("harness.submit is empty; it must be a command such as submit")
        if action_format not in ("raw", "fenced"):
            raise ConfigError(
                f"harness.action_format = {action_format!r} is not one of raw, fenced"
            )
        self.observation_role = observation_role
        self._system_prompt = system_prompt
        self._action_format = action_format
        self._submit = submit
        self._max_turns = max_turns
        self._max_output_tokens = max_output_tokens
        self._command_timeout_s = command_timeout_s
        self._max_observation_chars = max_observation_chars

    async def run(
        self, task: Task, session: PolicySession, environment: Environment
    ) -> FinishReason:
        """Reply, execute, observe, until `submit` or a limit."""
        session.begin(
            [
                {"role": "system", "content": with_skills(self._system_prompt, session.skills)},
                *with_prior_context(task.prior, task.instruction),
            ]
        )
        for _ in range(self._max_turns):
            reply = await session.reply(max_tokens=self._max_output_tokens)
            if reply.limit is not None:
                return reply.limit
            command = self.parse(reply.text)
            if command is None:
                session.observe(self._explain_format())
            elif command == self._submit:
                session.act(command)
                return FinishReason.SUBMITTED
            else:
                session.act(command)
                result = await environment.exec(command, timeout_s=self._command_timeout_s)
                session.observe(self.describe(result), exit_code=result.exit_code)
        return FinishReason.TURN_LIMIT

    def parse(self, text: str) -> str | None:
        """The command in a reply, after any thinking; `None` if there is not exactly one."""
        text = _THINKING.sub("", text, count=1)
        if self._action_format == "raw":
            return text.strip() or None
        blocks = [
            block.strip()
            for language, block in _BLOCK.findall(text)
            if language.strip().lower() in _LANGUAGES
        ]
        return blocks[0] if len(blocks) == 1 and blocks[0] else None

    def _explain_format(self) -> str:
        if self._action_format == "raw":
            return f"[no command] Reply with one shell command, or {self._submit} when done."
        return (
            "[no command] Reply with exactly one command in one code block that starts with "
            f"```bash, or {self._submit} in such a block when done."
        )

    def describe(self, result: ExecResult) -> str:
        """The observation: output, after the exit code if the command did not succeed."""
        output = clip(
            result.output.rstrip("\n"),
            self._max_observation_chars,
            dropped_bytes=result.dropped_bytes,
        )
        if result.timed_out:
            head = f"[timed out after {self._command_timeout_s:g} s]"
        elif result.exit_code != 0:
            head = f"[exit {result.exit_code}]"
        else:
            return output or "[ok]"
        return f"{head}\n{output}" if output else head
