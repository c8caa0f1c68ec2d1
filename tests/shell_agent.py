"""A real agent loop around an engine that a test controls: one command a reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arise.agents.orchestrator import Orchestrator
from arise.agents.rendering import ChatRenderer
from arise.agents.shell import ShellAgent
from arise.environments.base import EnvironmentFactory
from arise.inference.base import Engine
from arise.inference.scripted import ScriptedEngine
from arise.modules.loading import RandomModel

CONTEXT = 4000
TOKENIZER = RandomModel(
    seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
).tokenizer()
RENDERER = ChatRenderer(TOKENIZER, observation_role="user")
Session = tuple[int, int]
Script = Mapping[Session, Sequence[str]] | Callable[[Session], Sequence[str]]


def scripted_engine(
    script: Script, engine_type: type[ScriptedEngine] = ScriptedEngine, **options: Any
) -> ScriptedEngine:
    """Replies by (task, rollout) and turn."""
    return engine_type(
        script=script,
        encode=lambda text: TOKENIZER(text, add_special_tokens=False)["input_ids"],
        end_token_id=TOKENIZER.eos_token_id,
        max_context_tokens=CONTEXT,
        **options,
    )


def make_orchestrator(
    engine: Engine,
    machines: EnvironmentFactory,
    *,
    deterministic: bool = True,
    timeout_s: float = 20.0,
    max_in_flight: int | None = None,
    context_tokens: int = CONTEXT,
) -> Orchestrator:
    """Six turns at most; `submit` ends an episode."""
    return Orchestrator(
        engine=engine,
        environments=machines,
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
        renderer=RENDERER,
        context_tokens=context_tokens,
        max_in_flight=max_in_flight,
        default_timeout_s=timeout_s,
        deterministic=deterministic,
        seed=7,
    )
