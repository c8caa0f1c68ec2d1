"""Traces: complete, valid Unicode, shortened inside tool output first."""

from pathlib import Path

from arise.llm.text import cut_middle
from arise.rubrics.payloads import TraceStep, TrajectoryView
from arise.rubrics.trace import shorten, step_lines, trajectory_view
from arise.types import FinishReason, Task, Trajectory, Turn

TASK = Task(id="t", instruction="Sum it.", path=Path("x"), tests=Path("x/tests"))


def view(*steps: TraceStep) -> TrajectoryView:
    return TrajectoryView(
        task_id="t", instruction="Sum it.", steps=steps, finish_reason="submitted", is_success=True
    )


def step(text: int, command: int, observation: int) -> TraceStep:
    return TraceStep(text="t" * text, command="c" * command, observation="o" * observation)


def size(view: TrajectoryView) -> int:
    return sum(len(s.text) + len(s.command or "") + len(s.observation) for s in view.steps)


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
    assert shorten(original, 1000) is original


def test_only_the_longest_tool_outputs_are_cut_and_it_is_said() -> None:
    short = shorten(view(step(100, 100, 9000), step(100, 100, 200), step(100, 100, 5000)), 2000)
    assert [len(s.observation) for s in short.steps] == [600, 200, 600]
    assert all((len(s.text), len(s.command or "")) == (100, 100) for s in short.steps)
    assert size(short) == 2000
    assert short.note == (
        "Shortened in the middle, with the number of characters left out: 2 of 3 tool outputs."
    )
    assert "characters left out" in short.steps[0].observation


def test_messages_and_commands_are_cut_only_after_outputs_and_no_step_goes() -> None:
    short = shorten(view(*[step(2000, 3000, 4000)] * 10), 20_000)
    assert len(short.steps) == 10
    assert {len(s.observation) for s in short.steps} == {120}
    assert {len(s.text) for s in short.steps} == {120}
    assert {len(s.command or "") for s in short.steps} == {1760}
    assert size(short) == 20_000
    assert short.note.count("10 of 10") == 3


def test_a_tiny_budget_is_exceeded_rather_than_an_action_lost() -> None:
    short = shorten(view(*[step(500, 500, 500)] * 3), 10)
    assert [len(s.command or "") for s in short.steps] == [120] * 3


def test_cut_middle_keeps_both_ends_and_counts() -> None:
    text = "".join(chr(97 + n % 26) for n in range(5000))
    cut = cut_middle(text, 200)
    assert len(cut) == 200
    head, rest = cut.split("\n[… ")
    number, tail = rest.split(" characters left out …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(number) == 5000 - len(head) - len(tail)
