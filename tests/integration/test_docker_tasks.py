"""Task folders of the public formats, as they are, in containers; and those that cannot run."""

from pathlib import Path

import pytest

from arise.assembly import require_supported
from arise.tasks.corpus import load_corpus
from arise.types import FailureKind, RolloutFailure, Trajectory
from integration.playing import play
from integration.sandboxes import IMAGE, REWARD, make_docker_factory

pytestmark = pytest.mark.docker
MADE = f"[[ -f /app/made ]] && echo 1 > {REWARD} || echo 0 > {REWARD}\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write_harbor(folder: Path, dockerfile: str, manifest: str = "") -> None:
    files = {
        "task.toml": f'version = "1.0"\n{manifest}',
        "instruction.md": "Make it.",
        "tests/test.sh": MADE,
    }
    if dockerfile:
        files["environment/Dockerfile"] = f"FROM {IMAGE}\nWORKDIR /app\n{dockerfile}\n"
    write(folder, files)


def write_steps(folder: Path) -> None:
    step = '[[steps]]\nname = "{}"\nmin_reward = 1.0\n'
    write(
        folder,
        {
            "task.toml": f'schema_version = "1.4"\n{step.format("one")}{step.format("two")}',
            "environment/Dockerfile": f"FROM {IMAGE}\nWORKDIR /app\n",
            "steps/one/instruction.md": "Make it.",
            "steps/one/tests/test.sh": MADE,
            "steps/two/instruction.md": "Mend it.",
            "steps/two/workdir/setup.sh": "touch ready\n",
            "steps/two/tests/test.sh": f"ls; [[ -f made && -f ready && -f mended ]] && "
            f"echo '{{\"reward\": 1}}' > {REWARD.replace('txt', 'json')}\n",
        },
    )


def write_benchflow(folder: Path) -> None:
    front = "schema_version: '1.3'\nsandbox: {memory_mb: 256, allow_internet: false}\n"
    write(
        folder,
        {
            "task.md": f"---\n{front}---\n\n## prompt\n\nDo as the skill says.\n",
            "environment/Dockerfile": f"FROM {IMAGE}\nRUN mkdir /root/made\n",
            "environment/skills/making/SKILL.md": "touch /root/made/it\n",
            "verifier/test.sh": '[[ -f "$BENCHFLOW_VERIFIER_DIR/test_outputs.py" ]] || exit 1\n'
            'python3 "$BENCHFLOW_VERIFIER_DIR/test_outputs.py"\n',
            "verifier/test_outputs.py": "from pathlib import Path\n"
            "made = Path('/root/made/it').exists() and not Path('/app').exists()\n"
            f"Path('{REWARD}').write_text(str(float(made)))\n",
        },
    )


def test_public_formats_run_unchanged(tmp_path: Path) -> None:
    write_benchflow(tmp_path / "benchflow")
    write_harbor(tmp_path / "harbor", "RUN echo built > /srv/built")
    write_steps(tmp_path / "steps")
    tasks = load_corpus(tmp_path)
    replies = [
        ["bash /skills/making/SKILL.md", "submit"],
        ["grep -q built /srv/built && touch made", "submit"],
        ["touch made", "submit", "touch mended", "submit"],
    ]
    results = play(tasks, replies, make_docker_factory())
    assert [getattr(result, "task_reward", result) for result in results] == [1.0, 1.0, 1.0]


def test_only_the_task_that_cannot_run_is_out(tmp_path: Path) -> None:
    write_harbor(tmp_path / "absent", "", '[environment]\ndocker_image = "arise-absent:1"\n')
    write_harbor(tmp_path / "good", "ENV A=1")
    write_harbor(tmp_path / "gpus", "RUN true", "[environment]\ngpus = 1\n")
    write_harbor(tmp_path / "unbuildable", "RUN echo the reason; exit 3")
    factory = make_docker_factory()
    tasks = require_supported(load_corpus(tmp_path), factory)
    assert [task.id for task in tasks] == ["absent", "good", "unbuildable"]
    replies = [["submit"], ["touch made", "submit"], ["submit"]]
    absent, good, unbuildable = play(tasks, replies, factory)
    assert isinstance(good, Trajectory)
    assert good.task_reward == 1.0
    for failure, reason in (
        (absent, "arise-absent:1 is absent"),
        (unbuildable, "the log ends: "),
    ):
        assert isinstance(failure, RolloutFailure)
        assert failure.kind is FailureKind.SANDBOX
        assert reason in failure.message
