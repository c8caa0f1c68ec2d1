"""`harness=terminus2` against a real tmux, in both kinds of sandbox."""

import json
import shutil
from pathlib import Path

import pytest

from arise.agents.terminus2 import Terminus2Agent
from arise.types import FailureKind, FinishReason, InjectedSkill
from harnesses import failure, make_tokenizer, only, play, task_in
from integration.sandboxes import KINDS, REWARD, task_for

OPTIONS = {
    "notation": "json",
    "max_turns": 12,
    "max_output_tokens": 40_000,
    "summarize_below_tokens": None,
    "observation_role": "user",
}
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs the program tmux")


def agent(**changes: object) -> Terminus2Agent:
    return Terminus2Agent(**{**OPTIONS, **changes})  # type: ignore[arg-type]


def keys(*commands: tuple[str, float], complete: bool = False) -> str:
    sent = [{"keystrokes": text, "duration": seconds} for text, seconds in commands]
    return json.dumps({"analysis": "a", "plan": "p", "commands": sent, "task_complete": complete})


def in_xml(*commands: tuple[str, float], complete: bool = False) -> str:
    sent = "".join(f'<keystrokes duration="{s}">{text}</keystrokes>' for text, s in commands)
    return (
        f"<response><analysis>a</analysis><plan>p</plan><commands>{sent}</commands>"
        f"<task_complete>{str(complete).lower()}</task_complete></response>"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_keeps_its_state_and_shows_what_is_new(kind: str, tmp_path: Path) -> None:
    test = (
        "if [[ $(cat /app/f) == one && $(wc -c </app/big) == 20020 ]]; then echo 1; "
        f"else echo 0; fi >{REWARD}"
    )
    task = task_for(kind, tmp_path, test, workdir="/app")
    texts = [
        keys(("cd /app && echo one >f\n", 0.3), ("cat f\n", 0.3)),
        keys(("cat >big\n", 0.3), (("y" * 1_000 + "\n") * 20, 1.5), ("C-d", 0.3)),
        keys(("sleep 100\n", 0.2), ("C-c", 0.3), ("echo $((6*7))\n", 0.3)),
        keys(("seq 2000\n", 0.6)),
        "no json",
        keys(complete=True),
        keys(("echo wait\n", 0.3)),
        keys(complete=True),
        keys(complete=True),
    ]
    slots, engine, tokenizer = play(agent(), task, texts, kind=kind)
    trajectory = only(slots)
    seen = [turn.observation for turn in trajectory.turns]
    assert trajectory.finish_reason is FinishReason.SUBMITTED
    assert trajectory.task_reward == 1.0, seen
    assert len(trajectory.turns) == len(texts)
    first = tokenizer.decode(list(engine.requests[0].prompt_token_ids))
    assert first.startswith("<|user|>")
    assert "Current Terminal Screen:" in first
    assert seen[0].startswith("New Terminal Output:\n")
    assert "cat f\none\n" in seen[0]
    assert "^C" in seen[2]
    assert "\n42\n" in seen[2]
    assert "cat f" not in seen[2]
    assert len(seen[3].encode()) <= 10_060
    assert "\n1\n2\n3\n" in seen[3]
    assert "left out" not in seen[3]
    assert "\n1999\n2000\n" in seen[3]
    assert "could not be read" in seen[4]
    assert "really complete" in seen[5]
    assert "really complete" in seen[7]
    assert seen[6].startswith("New Terminal Output:")
    assert (trajectory.harness.num_tool_calls, trajectory.harness.num_tool_errors) == (9, 1)


def test_xml_an_ended_terminal_and_a_full_screen_program(tmp_path: Path) -> None:
    test = f"if [[ $(cat /app/f) == 'a & <b>' ]]; then echo 1; else echo 0; fi >{REWARD}"
    texts = [
        in_xml(("echo 'a & <b>' >/app/f\n", 0.3)),
        in_xml(("exit\n", 0.5)),
        in_xml(("echo again\n", 0.4)),
        in_xml(("printf '\\033[?1049hfull'; read; printf '\\033[?1049l'\n", 0.5)),
        in_xml(("\n", 0.5), complete=True),
        in_xml(complete=True),
    ]
    slots, _, _ = play(agent(notation="xml"), task_in(tmp_path, test, workdir="/app"), texts)
    trajectory = only(slots)
    seen = [turn.observation for turn in trajectory.turns]
    assert (trajectory.task_reward, trajectory.finish_reason) == (1.0, FinishReason.SUBMITTED), seen
    assert seen[1] == "[the terminal has ended]"
    assert seen[2].startswith("Current Terminal Screen:")
    assert "again" in seen[2]
    assert seen[3].startswith("Current Terminal Screen:\n")
    assert seen[3].split()[-1] == "full"
    assert "again" not in seen[3]


def test_a_reply_that_is_cut_off_executes_nothing(tmp_path: Path) -> None:
    test = f"if [[ -e /app/f ]]; then echo 0; else echo 1; fi >{REWARD}"
    texts = [keys(("touch /app/f\n", 0.1)) + " " * 400, keys(complete=True), keys(complete=True)]
    slots, _, _ = play(agent(max_output_tokens=200), task_in(tmp_path, test, workdir="/app"), texts)
    trajectory = only(slots)
    assert (trajectory.task_reward, trajectory.finish_reason) == (1.0, FinishReason.SUBMITTED)
    assert "cut off after 200 tokens" in trajectory.turns[0].observation
    assert trajectory.turns[0].finish_reason == "length"


def test_H06_summaries_make_rows_of_what_the_policy_saw(tmp_path: Path) -> None:
    """Four rows; each prompt is exactly what its row's tokens say, each reply trains once."""
    texts = [
        keys(("seq 1500\n", 0.6)),
        "notes",
        "which file?",
        "that one",
        keys(complete=True),
        keys(complete=True),
    ]
    # The first observation takes the room, the new history gives it back.
    slots, engine, tokenizer = play(
        agent(summarize_below_tokens=14_000, max_output_tokens=1000),
        task_in(tmp_path, f"echo 1 >{REWARD}"),
        texts,
        context_tokens=20_000,
    )
    trajectory = only(slots)
    assert trajectory.finish_reason is FinishReason.SUBMITTED, trajectory.turns[-1]
    rows = trajectory.rows
    assert trajectory.harness.row_reasons == {"compaction": 3}
    assert [sum(row.generated_mask) > 0 for row in rows] == [True] * 4
    assert sum(sum(row.generated_mask) for row in rows) == trajectory.num_generated_tokens
    saw = [tuple(request.prompt_token_ids) for request in engine.requests]
    for row, index in zip(rows, (1, 2, 3, 5), strict=True):
        turn = trajectory.turns[index]
        assert row.token_ids == (*saw[index], *turn.token_ids)
    shown = [tokenizer.decode(list(prompt)) for prompt in saw]
    assert "Its notes:\nnotes" in shown[2]
    assert "which file?" in shown[3]
    assert "seq 1500" in shown[3]
    assert all(text in shown[4] for text in ("notes", "which file?", "that one", "Do it."))


def test_skills_of_training_and_of_the_benchmark(tmp_path: Path) -> None:
    skills = tmp_path / "skills" / "pdf"
    skills.mkdir(parents=True)
    (skills / "SKILL.md").write_text("---\nname: pdf\ndescription: Read <PDF> files\n---\nBody")
    task = task_in(tmp_path, f"echo 1 >{REWARD}", skills=tmp_path / "skills")
    texts = [keys(("cat /skills/pdf/SKILL.md\n", 0.3), complete=True), keys(complete=True)]
    skill = InjectedSkill(pair_id=1, revision=0, text="Look twice.")
    tokenizer = make_tokenizer()
    slots, engine, _ = play(agent(), task, texts, skills=(skill,), tokenizer=tokenizer)
    trajectory = only(slots)
    prompt = tokenizer.decode(list(engine.requests[0].prompt_token_ids))
    assert prompt.startswith("<|system|>Skills:\n- Look twice.<|end|><|user|>")
    assert "<description>Read &lt;PDF&gt; files</description>" in prompt
    assert "<location>/skills/pdf/SKILL.md</location>" in prompt
    assert "Body" in trajectory.turns[0].observation


def test_a_sandbox_without_tmux_loses_the_trajectory_with_a_reason(tmp_path: Path) -> None:
    task = task_in(tmp_path, f"echo 1 >{REWARD}", env={"PATH": "/nowhere"})
    slots, _, _ = play(agent(), task, [keys(complete=True)])
    lost = failure(slots)
    assert lost.kind is FailureKind.HARNESS
    assert "needs the program tmux" in lost.message
