"""Tasks in several steps: a scripted policy, real sandboxes, tests after every step."""

from pathlib import Path

import pytest

from arise.tasks.corpus import load_task
from arise.types import FailureKind, RolloutFailure, Task, Trajectory
from integration import playing
from integration.sandboxes import REWARD, make_factory
from shell_agent import TOKENIZER


def write_task(folder: Path, *, strategy: str = "mean", setup: str = "touch ready") -> Task:
    """Step `make` wants `made` with a grade in it, `mend` wants what step one left and `mended`."""
    files = {
        "task.toml": f'multi_step_reward_strategy = "{strategy}"\n[[steps]]\nname = "make"\n'
        'min_reward = 0.5\n[[steps]]\nname = "mend"\n',
        "tests/helper": f"cat made > {REWARD}\n",
        "steps/make/instruction.md": "Make it.",
        "steps/make/tests/test.sh": "bash /tests/helper\n",
        "steps/mend/instruction.md": "Mend it.",
        "steps/mend/tests/test.sh": f"[[ -f given && -f ready && -f made && -f mended ]] && "
        f"echo 1 > {REWARD} || echo 0 > {REWARD}\n",
        "steps/mend/workdir/given": "",
        "steps/mend/workdir/setup.sh": f"{setup}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_task(folder, task_id="steps")


def play(task: Task, replies: list[str]) -> Trajectory | RolloutFailure:
    """The one rollout of `task` in which the policy says `replies`."""
    (result,) = playing.play([task], [replies], make_factory())
    return result


def test_steps_share_files_but_not_the_conversation(tmp_path: Path) -> None:
    replies = ["echo 0.5 > made", "submit", "ls", "touch mended", "submit"]
    trajectory = play(write_task(tmp_path), replies)
    assert isinstance(trajectory, Trajectory)
    assert trajectory.task_reward == (0.5 + 1.0) / 2
    assert [turn.starts_row for turn in trajectory.turns] == [True, False, True, False, False]
    assert trajectory.turns[2].observation.split() == ["given", "made", "ready", "setup.sh"]
    first, second = trajectory.rows
    texts = [TOKENIZER.decode(row.token_ids) for row in (first, second)]
    assert "Make it." in texts[0]
    assert "Mend it." in texts[1]
    assert "Make it." not in texts[1]
    assert trajectory.num_generated_tokens == sum(len(turn.token_ids) for turn in trajectory.turns)


def test_reward_of_the_last_step_alone(tmp_path: Path) -> None:
    replies = ["echo 0.5 > made", "submit", "submit"]
    trajectory = play(write_task(tmp_path, strategy="final"), replies)
    assert isinstance(trajectory, Trajectory)
    assert trajectory.task_reward == 0.0


@pytest.mark.parametrize("strategy", ["mean", "final"])
def test_a_step_below_its_minimum_ends_the_episode(tmp_path: Path, strategy: str) -> None:
    trajectory = play(write_task(tmp_path, strategy=strategy), ["echo 0.4 > made", "submit"])
    assert isinstance(trajectory, Trajectory)
    assert trajectory.task_reward == 0.4
    assert len(trajectory.turns) == 2


def test_tests_without_a_reward_lose_the_rollout(tmp_path: Path) -> None:
    failure = play(write_task(tmp_path), ["echo much > made", "submit"])
    assert isinstance(failure, RolloutFailure)
    assert failure.kind is FailureKind.VERIFIER


def test_setup_that_fails_loses_the_rollout(tmp_path: Path) -> None:
    task = write_task(tmp_path, setup="echo no disk; exit 4")
    failure = play(task, ["echo 1 > made", "submit"])
    assert isinstance(failure, RolloutFailure)
    assert failure.kind is FailureKind.SANDBOX
    assert "setup.sh of step mend failed; its output ends: no disk" in failure.message
