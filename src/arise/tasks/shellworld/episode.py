"""The agent protocol as the tiny policy knows it: prompts, observations, limits.

The shell agent of the trainer must be configured with the same figures: they are the laptop
scale's `harness` settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from arise.tasks.shellworld.expert import Seen

SYSTEM_PROMPT = "You are an agent in a Linux shell. Reply with one command. Reply submit when done."
SUBMIT = "submit"
MAX_TURNS = 8
MAX_OUTPUT_TOKENS = 32
CONTEXT_TOKENS = 512
MAX_OBSERVATION_CHARS = 240
ROLES = ("system", "user", "assistant", "tool")


def system_prompt(skills: Sequence[str]) -> str:
    """The system prompt with the active skills below it."""
    if not skills:
        return SYSTEM_PROMPT
    return "\n".join([SYSTEM_PROMPT, "Skills:", *(f"- {skill}" for skill in skills)])


def clip(text: str, limit: int = MAX_OBSERVATION_CHARS) -> str:
    """Head and tail of a long text, and how much is missing between them."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    head = limit - tail
    return f"{text[:head]}\n[{len(text) - limit} characters left out]\n{text[len(text) - tail :]}"


def observation(seen: Seen) -> str:
    """What the agent is told about a command."""
    output = clip(seen.output.rstrip("\n"))
    if seen.exit_code == 0:
        return output or "[ok]"
    head = f"[exit {seen.exit_code}]"
    return f"{head}\n{output}" if output else head
