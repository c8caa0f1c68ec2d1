"""Plays a harness in a real sandbox with a scripted policy."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arise.agents.orchestrator import Orchestrator, RolloutPlan
from arise.agents.rendering import ChatRenderer
from arise.inference.base import SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.modules.loading import RandomModel
from arise.types import EnvironmentSpec, InjectedSkill, RolloutFailure, Task, Trajectory
from integration.sandboxes import factory_of

# How Qwen and Hermes write tools and calls; arguments as JSON, and one parameter a line.
JSON_CALLS = """\
{%- if tools %}<|system|>{{ messages[0].content if messages[0].role == 'system' else '' }}
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' %}{% if not tools %}<|system|>{{ m.content }}<|end|>{% endif %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|user|>{% endif %}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>{% endif %}
{%- else %}<|{{ m.role }}|>{{ m.content }}
{%- if m.tool_calls %}{% for call in m.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}<|end|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
ITEM_CALLS = JSON_CALLS.replace(
    """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}""",
    """<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>""",
)


def make_tokenizer(chat_template: str | None = None) -> Any:
    tokenizer = RandomModel(
        seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
    ).tokenizer()
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def call(name: str, arguments: str) -> str:
    """A tool call as a policy writes it; `arguments` as JSON text."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def task_in(folder: Path, test: str, **spec: object) -> Task:
    """A task whose tests are the lines of one script."""
    tests = folder / "tests"
    tests.mkdir(parents=True, exist_ok=True)
    (tests / "test.sh").write_text(test)
    return Task(
        id="toy",
        instruction="Do it.",
        path=folder,
        tests=tests,
        environment=EnvironmentSpec(**spec),
        verifier_timeout_s=20.0,
    )


def play(
    harness: Any,
    task: Task,
    texts: Sequence[str] | Callable[[tuple[int, int]], Sequence[str]],
    *,
    tokenizer: Any = None,
    kind: str = "bubblewrap",
    rollouts: int = 1,
    context_tokens: int = 100_000,
    timeout_s: float = 60.0,
    skills: tuple[InjectedSkill, ...] = (),
    purpose: str = "train",
    sampling: SamplingParams | None = None,
    **settings: object,
) -> tuple[list[Trajectory | RolloutFailure], ScriptedEngine, Any]:
    """Every rollout's outcome, the engine with all requests, and the tokenizer."""
    tokenizer = tokenizer or make_tokenizer()
    engine = ScriptedEngine(
        script=texts if callable(texts) else lambda _: texts,
        encode=lambda text: tokenizer(text, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ],
        end_token_id=tokenizer.eos_token_id,
        max_context_tokens=context_tokens,
    )
    factory = factory_of(kind, **settings)
    orchestrator = Orchestrator(
        engine=engine,
        environments=factory,
        harness=harness,
        renderer=ChatRenderer(tokenizer, observation_role=harness.observation_role),
        context_tokens=context_tokens,
        max_in_flight=None,
        default_timeout_s=timeout_s,
        deterministic=False,
        seed=1,
    )
    plan = RolloutPlan(
        tasks=[task],
        rollouts_per_task=rollouts,
        version=0,
        sampling=sampling or SamplingParams(),
        skills=skills,
        purpose=purpose,
    )

    async def run() -> list[Trajectory | RolloutFailure]:
        try:
            (group,) = await orchestrator.run(plan)
            return list(group.slots)
        finally:
            stop = getattr(harness, "stop", None)
            if stop is not None:
                await stop()

    try:
        return asyncio.run(run()), engine, tokenizer
    finally:
        factory.close()


def only(slots: Sequence[Trajectory | RolloutFailure]) -> Trajectory:
    """The trajectory of an episode that was not lost."""
    (slot,) = slots
    assert isinstance(slot, Trajectory), slot
    return slot


def failure(slots: Sequence[Trajectory | RolloutFailure]) -> RolloutFailure:
    (slot,) = slots
    assert isinstance(slot, RolloutFailure), slot
    return slot
