"""The worked examples of `docs/extending.md`, each as it stands there, in a real training run."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer

from arise import app
from arise.errors import ConfigError
from arise.rubrics.events import read_events
from arise.tasks.corpus import load_corpus
from arise.tasks.shellworld.corpus import write_corpus
from documented_blocks import Command, commands, files, for_hydra
from runs import ROOT, compose_config, only_run, trajectories

PAGE = ROOT / "docs" / "extending.md"
SMALL = (
    "evaluation=none",
    "logger=none",
    "quiet=true",
    "datamodule.generator.count=4",
    "rollout.tasks_per_step=2",
    "rollout.rollouts_per_task=2",
    "rubrics.update_interval=1",
    "trainer.max_steps=2",
)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files where a reader would put them, open to the sandboxes' ordinary user."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)
    for name, text in files(PAGE).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for command in commands(PAGE):
        if command.words[0] == "chmod":
            subprocess.run(command.words, check=True, cwd=folder)
    return folder / "mine"


@pytest.fixture
def at_mine(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the folder that holds `mine/`, with `PYTHONPATH=mine`."""
    monkeypatch.chdir(mine.parent)
    monkeypatch.syspath_prepend(str(mine))
    importlib.invalidate_caches()
    return mine


def documented(choice: str) -> Command:
    """The one command of the page with this override."""
    (command,) = (c for c in commands(PAGE) if choice in c.words)
    assert command.words[:2] == ("python", "train.py")
    assert command.variables == ("PYTHONPATH=mine",)
    return command


def composed(choice: str, *further: str) -> DictConfig:
    return compose_config(*for_hydra(documented(choice).words[2:]), *SMALL, *further)


def train(choice: str, output_dir: Path) -> Path:
    app.train(composed(choice, f"paths.output_dir={output_dir}"))
    return only_run(output_dir, "arise")


def test_a_harness_of_ones_own(at_mine: Path, tmp_path: Path) -> None:
    run = train("harness=tour", tmp_path)
    slots = [slot for step in trajectories(run).values() for slot in step]
    assert len(slots) == 8
    tokenizer = AutoTokenizer.from_pretrained(run / "final_model")
    for slot in slots:
        assert "failure" not in slot
        assert all(turn["action"] == turn["text"].strip() for turn in slot["turns"][:-1])
        assert "Files:" in tokenizer.decode(slot["turns"][0]["prompt_token_ids"])


def test_a_wrong_value_of_ones_own_class_names_its_key(at_mine: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"harness\.max_turns = 0"):
        app.train(composed("harness=tour", "harness.max_turns=0", f"paths.output_dir={tmp_path}"))


def test_an_environment_of_ones_own(at_mine: Path, tmp_path: Path) -> None:
    run = train("environment=toolbox", tmp_path / "outputs")
    slots = [slot for step in trajectories(run).values() for slot in step]
    assert len(slots) == 8
    assert not any("failure" in slot for slot in slots)

    node = OmegaConf.to_container(composed("environment=toolbox").environment, resolve=True)
    factory = instantiate(node)
    corpus = write_corpus(tmp_path, split="train", count=1, seed=1, mix="single")
    (task,) = load_corpus(str(corpus), on_broken="fail")

    async def longest_line() -> str:
        machine = factory.create(task, name="test")
        try:
            await machine.start()
            await machine.exec("printf 'a\\nabc\\nab\\n' > lines", timeout_s=10)
            return (await machine.exec("longest lines", timeout_s=10)).output
        finally:
            await machine.stop()

    try:
        assert asyncio.run(longest_line()) == "abc\n"
    finally:
        factory.close()


def test_a_sampler_of_ones_own(at_mine: Path, tmp_path: Path) -> None:
    run = train("curriculum=rounds", tmp_path)
    order = [slot["task_id"] for step in trajectories(run).values() for slot in step]
    # Four tasks in two iterations of two, with two rollouts each: every one of them, in order.
    assert len(set(order)) == 4
    assert order == sorted(order)


def test_an_argument_that_ones_own_sampler_does_not_have_is_explained(
    at_mine: Path, tmp_path: Path
) -> None:
    cfg = composed("curriculum=rounds", "+curriculum.speed=1", f"paths.output_dir={tmp_path}")
    with pytest.raises(ConfigError, match=r"curriculum: .* unexpected keyword argument 'speed'"):
        app.train(cfg)


def test_a_judge_and_a_reflection_model_of_ones_own(at_mine: Path, tmp_path: Path) -> None:
    run = train("judge=lookback", tmp_path)
    lookback = sys.modules["lookback"]
    events = read_events(run / "pool.jsonl", key="pool")
    created = [event for event in events if event["type"] == "created"]
    assert [event["pair"]["title"] for event in created] == [lookback.BEHAVIOUR]
    first, second = trajectories(run).values()
    assert not any(slot["review"]["verdicts"] for slot in first)
    for slot in second:
        (verdict,) = slot["review"]["verdicts"]
        done = [turn["action"] for turn in slot["turns"] if turn["action"] not in (None, "submit")]
        looked = bool(done) and lookback.is_look(done[-1])
        assert verdict["outcome"] == ("pass" if looked else "fail")
        assert slot["review"]["model"] == lookback.LookBackJudge.name
