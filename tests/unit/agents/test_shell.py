from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from arise.agents.recording import PolicySession
from arise.agents.rendering import ChatRenderer
from arise.agents.shell import ShellAgent, clip
from arise.environments.base import ExecResult
from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.modules.loading import RandomModel
from arise.types import FinishReason, InjectedSkill, Task

pytestmark = pytest.mark.anyio

TOKENIZER = RandomModel(
    seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
).tokenizer()
RENDERER = ChatRenderer(TOKENIZER, observation_role="user")
TASK = Task(id="t", instruction="Sort.", path=Path("t"), tests=Path("t/tests"))
OPTIONS = {
    "system_prompt": "Act.",
    "action_format": "raw",
    "submit": "submit",
    "max_turns": 4,
    "max_output_tokens": 64,
    "command_timeout_s": 2.5,
    "max_observation_chars": 100,
    "observation_role": "user",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Machine:
    """A machine whose commands give known results."""

    def __init__(self, results: Mapping[str, ExecResult]) -> None:
        self.results = results
        self.commands: list[tuple[str, float]] = []

    async def start(self) -> None:
        pass

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        self.commands.append((command, timeout_s))
        return self.results.get(command, ExecResult(exit_code=0, output=""))

    async def grade(
        self, tests: Path, *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        raise AssertionError("the agent does not grade")

    async def stop(self) -> None:
        pass


def make_agent(**changes: object) -> ShellAgent:
    return ShellAgent(**{**OPTIONS, **changes})  # type: ignore[arg-type]


async def play(
    agent: ShellAgent,
    texts: Sequence[str],
    machine: Machine | None = None,
    *,
    context_tokens: int = 10_000,
    skills: tuple[InjectedSkill, ...] = (),
) -> tuple[FinishReason, PolicySession, ScriptedEngine]:
    engine = ScriptedEngine(
        script={(0, 0): texts},
        encode=lambda text: TOKENIZER(text, add_special_tokens=False)["input_ids"],
        end_token_id=TOKENIZER.eos_token_id,
        max_context_tokens=context_tokens,
    )

    async def generate(request: GenerationRequest) -> Completion:
        (answer,) = await engine.generate([request])
        if isinstance(answer, InferenceError):
            raise answer
        return answer

    session = PolicySession(
        session=(0, 0),
        renderer=RENDERER,
        generate=generate,
        sampling=SamplingParams(),
        seed_parts=(),
        context_tokens=context_tokens,
        skills=skills,
    )
    reason = await agent.run(TASK, session, machine or Machine({}))
    return reason, session, engine


async def test_it_executes_observes_and_submits() -> None:
    machine = Machine({"ls": ExecResult(exit_code=0, output="a\nb\n")})
    reason, session, engine = await play(make_agent(), ["ls", " submit\n"], machine)
    assert reason is FinishReason.SUBMITTED
    assert machine.commands == [("ls", 2.5)]
    assert [(t.action, t.observation, t.exit_code) for t in session.turns] == [
        ("ls", "a\nb", 0),
        ("submit", "", None),
    ]
    prompt = TOKENIZER.decode(list(engine.requests[1].prompt_token_ids))
    assert prompt == (
        "<|system|>Act.<|end|><|user|>Sort.<|end|><|assistant|>ls<|end|>"
        "<|user|>a\nb<|end|><|assistant|>"
    )


async def test_skills_stand_in_the_system_prompt() -> None:
    skill = InjectedSkill(pair_id=1, revision=0, text="Check twice.")
    _, _, engine = await play(make_agent(), ["submit"], skills=(skill,))
    prompt = TOKENIZER.decode(list(engine.requests[0].prompt_token_ids))
    assert prompt.startswith("<|system|>Act.\nSkills:\n- Check twice.<|end|><|user|>Sort.<|end|>")


async def test_the_turn_limit_ends_after_the_last_command() -> None:
    machine = Machine({})
    reason, session, _ = await play(make_agent(max_turns=2), ["a", "b", "c"], machine)
    assert reason is FinishReason.TURN_LIMIT
    assert [command for command, _ in machine.commands] == ["a", "b"]
    assert len(session.turns) == 2


async def test_an_action_cut_by_the_output_limit_is_not_executed() -> None:
    machine = Machine({})
    agent = make_agent(max_output_tokens=4)
    reason, session, _ = await play(agent, ["rm -rf build"], machine)
    assert reason is FinishReason.OUTPUT_LIMIT
    assert machine.commands == []
    assert (session.turns[0].text, session.turns[0].action) == ("rm -", None)


async def test_H05_a_large_output_ends_as_context_limit() -> None:
    machine = Machine({"cat big": ExecResult(exit_code=0, output="x" * 500)})
    agent = make_agent(max_observation_chars=1000)
    reason, session, _ = await play(agent, ["cat big", "ls"], machine, context_tokens=200)
    assert reason is FinishReason.CONTEXT_LIMIT
    assert len(session.turns) == 1


async def test_a_reply_without_a_command_is_explained_and_costs_a_turn() -> None:
    agent = make_agent(action_format="fenced", max_turns=2)
    reason, session, _ = await play(agent, ["I would list files.", "```bash\nsubmit\n```"])
    assert reason is FinishReason.SUBMITTED
    assert session.turns[0].action is None
    assert session.turns[0].observation.startswith("[no command]")
    assert "```bash" in session.turns[0].observation


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ls -la\n", "ls -la"),
        ("cat <<E\nx\nE", "cat <<E\nx\nE"),
        ("  \n", None),
        ("<think>\nlist first\n</think>\n\nls", "ls"),
        ("list first\n</think>\nls", "ls"),
        ("echo '</think>' > f", "echo '</think>' > f"),
    ],
)
def test_a_raw_reply_is_the_command(text: str, command: str | None) -> None:
    assert make_agent().parse(text) == command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("Look:\n```bash\nls -la\n```\nDone.", "ls -la"),
        ("```\nls\n```", "ls"),
        ("```sh\nls```", "ls"),
        ("```Shell \r\nls\r\n```\r\n", "ls"),
        ("```bash\nls\npwd\n```", "ls\npwd"),
        ("```bash\necho '```' > f\n```", "echo '```' > f"),
        ("no block", None),
        ("```bash\nls", None),
        ("```bash\n\n```", None),
        ("```bash\nls\n```\n```bash\npwd\n```", None),
        ("```bash\ncat > README <<E\n```\ncode\n```\nE\n```", None),
        ("```python\nprint(1)\n```\nthen\n```bash\nls\n```", "ls"),
        ("```python\nprint(1)\n```\nthen\n", None),
        ("<think>\n```bash\nrm x\n```\n</think>\n```bash\nls\n```", "ls"),
    ],
)
def test_a_fenced_reply_holds_exactly_one_command(text: str, command: str | None) -> None:
    assert make_agent(action_format="fenced").parse(text) == command


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ExecResult(exit_code=0, output="a\n"), "a"),
        (ExecResult(exit_code=0, output=""), "[ok]"),
        (ExecResult(exit_code=2, output="no\n"), "[exit 2]\nno"),
        (ExecResult(exit_code=137, output=""), "[exit 137]"),
        (
            ExecResult(exit_code=None, output="part", timed_out=True),
            "[timed out after 2.5 s]\npart",
        ),
    ],
)
def test_observations(result: ExecResult, text: str) -> None:
    assert make_agent().describe(result) == text


def test_X04_clipping_keeps_both_ends_and_says_what_is_missing() -> None:
    text = "START" + "x" * 200_000 + "END"
    clipped = clip(text, 100)
    head, note, tail = clipped.split("\n")
    assert (len(head), len(tail)) == (50, 50)
    assert head.startswith("START")
    assert tail.endswith("END")
    assert note == f"[{len(text) - 100} characters left out]"
    assert clip("short", 5) == "short"
    assert clip("abc", 1) == "a\n[2 characters left out]\n"


def test_X04_bytes_that_the_sandbox_dropped_are_still_stated() -> None:
    output = "H" * 150 + "\n[... 9000 bytes dropped ...]\n" + "T" * 150
    result = ExecResult(exit_code=0, output=output, dropped_bytes=9000)
    described = make_agent().describe(result)
    assert "9000 bytes" in described
    assert described.startswith("H" * 50 + "\n[")
    assert described.endswith("]\n" + "T" * 50)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_turns", 0),
        ("max_output_tokens", 0),
        ("max_observation_chars", 0),
        ("command_timeout_s", 0.0),
        ("submit", " "),
        ("action_format", "json"),
    ],
)
def test_options_out_of_range_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"harness\.{key}"):
        make_agent(**{key: value})
