"""The agent loop of Terminus-2: keystrokes, wait, look, until the task is called complete twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from arise.agents.harness import Harness
from arise.agents.recording import PolicySession, Reply, with_skills
from arise.agents.task_skills import describe_task_skills
from arise.agents.terminus2 import prompts
from arise.agents.terminus2.json_reply import parse_json
from arise.agents.terminus2.reply import MAX_DURATION_S, TerminalReply
from arise.agents.terminus2.terminal import Terminal
from arise.agents.terminus2.xml_reply import parse_xml
from arise.agents.toolcalls import split_reasoning
from arise.environments.base import Environment
from arise.errors import ConfigError
from arise.tasks.prior_context import with_prior_context
from arise.types import FinishReason, Task

_PARSERS = {"json": parse_json, "xml": parse_xml}


class Terminus2Agent(Harness):
    """The harness of Terminal-Bench evaluation: no system message, no tools, a tmux terminal.

    Active skills of training go into a system message, which is absent without any.

    Args:
        notation: `"json"` or `"xml"`.
        max_turns: Most replies in an episode.
        max_output_tokens: Most tokens in a reply; one that is cut off is not executed, and the
            policy is told.
        summarize_below_tokens: With less room than this in the context, the history is replaced by
            a summary, questions about it and their answers, each a token row of its own; `None`
            ends the episode at the context's end instead.
        observation_role: Chat role of what the terminal shows.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(
        self,
        *,
        notation: Literal["json", "xml"],
        max_turns: int,
        max_output_tokens: int,
        summarize_below_tokens: int | None,
        observation_role: str,
    ) -> None:
        if notation not in _PARSERS:
            raise ConfigError(f"harness.notation = {notation!r} is not one of json, xml")
        for key, value in (
            ("max_turns", max_turns),
            ("max_output_tokens", max_output_tokens),
            ("summarize_below_tokens", summarize_below_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"harness.{key} = {value} must be at least 1")
        self.observation_role = observation_role
        self._notation = notation
        self._max_turns = max_turns
        self._max_output_tokens = max_output_tokens
        self._summarize_below_tokens = summarize_below_tokens

    async def run(
        self, task: Task, session: PolicySession, environment: Environment
    ) -> FinishReason:
        """Reply, type, look, until the task is called complete twice in a row."""
        terminal = Terminal(environment)
        await terminal.start()
        instruction = task.instruction
        task_skills = describe_task_skills(task.environment.skills)
        if task_skills:
            instruction = f"{instruction}\n\n{task_skills}"
        opening = self._opening(instruction, await terminal.output())
        self._begin(session, opening, prior=task.prior)
        is_pending = False
        for _ in range(self._max_turns):
            reply = await session.reply(max_tokens=self._max_output_tokens)
            if reply.limit is FinishReason.OUTPUT_LIMIT:
                session.observe(prompts.cut_off(self._max_output_tokens))
                continue
            if reply.limit is not None:
                return reply.limit
            parsed = _PARSERS[self._notation](split_reasoning(reply.text)[1])
            session.num_tool_calls += 1
            if parsed.error:
                session.num_tool_errors += 1
                session.observe(prompts.unreadable(parsed.error, parsed.warnings))
                continue
            shown = await self._type(parsed, session, terminal)
            if parsed.is_complete and is_pending:
                return FinishReason.SUBMITTED
            is_pending = parsed.is_complete
            observation = (
                prompts.confirmation(shown, notation=self._notation)
                if is_pending
                else prompts.with_warnings(shown, parsed.warnings)
            )
            if not self._must_summarize(session, observation):
                session.observe(observation)
                continue
            session.observe(f"{observation}\n\n{prompts.SUMMARY}")
            if not await self._summarize(instruction, session, terminal):
                return FinishReason.CONTEXT_LIMIT
        return FinishReason.TURN_LIMIT

    async def _type(self, parsed: TerminalReply, session: PolicySession, terminal: Terminal) -> str:
        """Send the commands of a reply; what the terminal shows then."""
        keys = "".join(command.keys for command in parsed.commands)
        if keys:
            session.act(keys)
        for command in parsed.commands:
            await terminal.send(command.keys, wait_s=min(command.duration_s, MAX_DURATION_S))
        return await terminal.output()

    def _opening(self, instruction: str, terminal: str) -> str:
        return prompts.first_message(instruction, terminal, notation=self._notation)

    def _begin(
        self,
        session: PolicySession,
        message: str,
        *,
        prior: tuple[Mapping[str, str], ...] = (),
    ) -> None:
        skills = with_skills("", session.skills).strip()
        system = [{"role": "system", "content": skills}] if skills else []
        messages = with_prior_context(prior, message)
        session.begin([*system, *messages], reason="compaction")

    def _must_summarize(self, session: PolicySession, observation: str) -> bool:
        least = self._summarize_below_tokens
        return least is not None and (
            session.room - len(session.renderer.encode_text(observation)) < least
        )

    async def _summarize(
        self, instruction: str, session: PolicySession, terminal: Terminal
    ) -> bool:
        """Replace the history, whose last message asks for a summary; whether there was room."""
        screen = await terminal.output()
        summary = await self._ask(session)
        if summary.limit is not None:
            return False
        old = session.snapshot()
        self._begin(session, prompts.questions(instruction, _text(summary), screen))
        asked = await self._ask(session)
        if asked.limit is not None:
            return False
        session.return_to(old, prompts.answers(_text(asked)), reason="compaction")
        answered = await self._ask(session)
        if answered.limit is not None:
            return False
        opening = self._opening(instruction, screen)
        texts = (_text(reply) for reply in (summary, asked, answered))
        self._begin(session, prompts.handover(opening, *texts))
        return True

    async def _ask(self, session: PolicySession) -> Reply:
        return await session.reply(max_tokens=self._max_output_tokens)


def _text(reply: Reply) -> str:
    return split_reasoning(reply.text)[1].strip()
