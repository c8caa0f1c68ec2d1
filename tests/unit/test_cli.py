import sys
from collections.abc import Iterator
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from arise import cli
from arise.agents.shell import ShellAgent
from arise.errors import ConfigError, WeightSyncError

CONFIGS = Path(__file__).parents[2] / "configs"
GOOD = ["datamodule=folder", "datamodule.corpus=x", "evaluation=none", "model=random_tiny"]


@pytest.fixture(autouse=True)
def clean_hydra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.chdir(tmp_path)
    yield
    GlobalHydra.instance().clear()


def raising(error: BaseException) -> None:
    raise error


def exit_code(main: object) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.run(main)  # type: ignore[arg-type]
    return caught.value.code


def run_train(monkeypatch: pytest.MonkeyPatch, body: object, *overrides: str) -> None:
    """Compose the shipped configuration from a command line and call `body` with it."""
    monkeypatch.setattr(sys, "argv", ["train.py", *GOOD, *overrides])
    main = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
    cli.run(main(body))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("seed = x is wrong"), 2, "error: seed = x is wrong\n"),
        (WeightSyncError("stale"), 1, "error: WeightSyncError: stale\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_each_way_to_fail_has_its_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    assert exit_code(lambda: raising(error)) == code
    assert capsys.readouterr().err == text


def test_a_fault_nobody_foresaw_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        cli.run(lambda: 1 // 0)


def test_success_returns() -> None:
    assert cli.run(lambda: None) is None


def test_the_composed_configuration_reaches_the_function(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[DictConfig] = []
    run_train(monkeypatch, seen.append, "seed=5")
    assert seen[0].seed == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("algorithm.lambdda=0.3", ["algorithm.lambdda"]),
        ("algorithm.dual_clip=big", ["algorithm.dual_clip", "'big'", "Float"]),
        ("curriculum=absent", ["curriculum/absent", "capability"]),
        ("experiment_name=a,b", ["Ambiguous value"]),
        ("ckpt_path=epoch=3.ckpt", ["mismatched input", "needs quotes", "'key=\"value\"'"]),
        ("ckpt_path=a#b", ["needs quotes"]),
        ("ckpt_path=李", ["needs quotes"]),
    ],
)
def test_C01_C03_a_wrong_command_line_is_explained(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    override: str,
    parts: list[str],
) -> None:
    calls: list[DictConfig] = []
    with pytest.raises(SystemExit) as caught:
        run_train(monkeypatch, calls.append, override)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    for part in parts:
        assert part in error
    assert "Traceback" not in error
    assert calls == []


def test_a_constructors_complaint_is_shown_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(cfg: DictConfig) -> None:
        assert isinstance(hydra.utils.instantiate(cfg.harness), ShellAgent)

    run_train(monkeypatch, body)
    with pytest.raises(SystemExit) as caught:
        run_train(monkeypatch, body, "harness.max_turns=0")
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("\nerror: harness.max_turns = 0 must be at least 1\n")
