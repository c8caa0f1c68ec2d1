"""TensorBoard's first page, pictures and texts, and the other loggers."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arise.assembly import build_loggers
from arise.callbacks.board import FIRST_PAGE, BoardCallback, pair_page
from arise.callbacks.figures import feedback_figure, sampling_figure, stage_of, windows
from arise.errors import ConfigError
from arise.types import Capability, Iteration, SampledTask, Task
from runs import compose_config

TASK = Task(id="t", instruction="", path=Path("t"), tests=Path("t"))
PAIR = {
    "title": "Look first",
    "capability": "debugging",
    "rubric": {"applicability": "always", "fail_condition": "blind", "pass_condition": "looks"},
    "skill": {"text": "Look.\n<b>Now</b>"},
}


def test_windows_end_at_multiples_of_ten_and_leave_out_what_is_undefined() -> None:
    history = [{"step": 9.0, "x": 0.2}, {"step": 10.0, "x": 0.4}, {"step": 11.0, "x": 0.5}]
    assert windows([*history, {"step": 25.0}], "x") == pytest.approx({10: 0.3, 20: 0.5})


@pytest.mark.parametrize(
    ("step", "stage"), [(1, 0), (50, 0), (51, 1), (100, 1), (101, 2), (150, 2)]
)
def test_stages_are_thirds_of_the_run(step: int, stage: int) -> None:
    assert stage_of(step, 150) == stage


def test_the_feedback_picture_has_running_counts_means_and_stages() -> None:
    history = [
        {
            "step": 1.0,
            "reward/pass_rate": 0.25,
            "reward/all_fail_group_share": 1.0,
            "pool/size": 0.0,
        },
        {"step": 2.0, "reward/pass_rate": 0.75, "pool/size": 2.0, "pool/created": 2.0},
        {"step": 3.0, "reward/all_fail_group_share": 0.5, "pool/size": 1.0, "pool/retired": 1.0},
    ]
    counts, rates, fails = feedback_figure(history, max_steps=3).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in counts.get_lines()}
    assert lines == {"active": [0, 2, 1], "added": [0, 2, 2], "retired": [0, 0, 1]}
    reward, passed = rates.get_lines()
    assert list(reward.get_xdata()) == []
    assert (list(passed.get_xdata()), list(passed.get_ydata())) == ([10], [0.5])
    assert [bar.get_height() for bar in fails.patches] == [1.0, 0.5]
    assert [tick.get_text() for tick in fails.get_xticklabels()] == ["early", "late"]


def test_the_sampling_picture_has_shares_and_blanks() -> None:
    figure = sampling_figure([{}, {("csv", "debugging"): 3, ("csv", "execution"): 1}, {}])
    early, middle = (axes.images[0].get_array().filled(math.nan) for axes in figure.axes[:2])
    names = [capability.value for capability in Capability]
    assert middle[0][names.index("debugging")] == 0.75
    assert middle[0][names.index("execution")] == 0.25
    assert math.isnan(middle[0][names.index("efficiency")])
    assert all(math.isnan(value) for value in early[0])


def test_a_pairs_page_says_what_it_was_and_shows_markup_as_text() -> None:
    created = pair_page({"type": "created", "pair_id": 3, "step": 5}, PAIR)
    assert created.startswith("**R3 created** at step 5\n\n")
    assert "    Look first (debugging)" in created
    assert "skill\n\n    Look.\n    <b>Now</b>" in created
    refined = pair_page(
        {
            "type": "refined",
            "pair_id": 3,
            "step": 10,
            "pass_rate": 0.25,
            "num_applicable": 8,
            "old_text": "Look.",
            "text": "Look twice.",
        },
        PAIR,
    )
    assert refined.startswith("**R3 refined** at step 10: 25.0% of 8 passed")
    assert "skill before\n\n    Look.\n\nskill now\n\n    Look twice." in refined


def steps(callback: BoardCallback, logger: Any, first: int, last: int, max_steps: int) -> None:
    """What Lightning calls during these steps, with the real logger."""
    trainer: Any = SimpleNamespace(
        loggers=[logger], is_global_zero=True, max_steps=max_steps, global_step=first - 1
    )
    module: Any = None
    callback.on_train_start(trainer, module)
    for step in range(first, last + 1):
        trainer.global_step = step
        iteration = Iteration(index=step - 1, metrics={"reward/pass_rate": 0.5, "pool/size": 1.0})
        iteration.samples = [
            SampledTask(task=TASK, reason="adaptive", tag="csv", capability=Capability.EXECUTION),
            SampledTask(task=TASK, reason="discovery"),
        ]
        callback.on_train_batch_end(trainer, module, None, iteration, step - 1)
    logger.experiment.flush()


def test_pictures_come_every_ten_steps_and_at_the_end_and_survive_a_resume(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="")
    first = BoardCallback()
    steps(first, logger, 1, 11, max_steps=12)
    second = BoardCallback()
    second.load_state_dict(first.state_dict())
    steps(second, logger, 12, 12, max_steps=12)
    assert second.state_dict()["choices"] == [(n, "csv", "execution") for n in range(1, 13)]
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    events.Reload()
    for tag in ("figures/feedback", "figures/sampling"):
        assert [image.step for image in events.Images(tag)] == [10, 12]
        assert events.Images(tag)[0].width >= 1000
    assert "custom_scalars__config__" in events.Tags()["tensors"]
    layout = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert all(title.encode() in layout for title in FIRST_PAGE)


@pytest.mark.parametrize("name", ["tensorboard", "csv", "wandb", "mlflow"])
def test_every_logger_writes_into_the_runs_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"csv": "lightning"}.get(name, name))
    monkeypatch.setenv("WANDB_SILENT", "true")
    overrides = ["logger.wandb.offline=true"] if name == "wandb" else []
    (logger,) = build_loggers(compose_config(f"logger={name}", *overrides), tmp_path)
    logger.log_metrics({"reward/pass_rate": 0.5}, step=1)
    logger.save()
    logger.finalize("success")
    if name == "wandb":
        logger.experiment.finish()
    files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert any(path.stat().st_size for path in files)
    if name == "mlflow":
        (metric,) = [path for path in files if path.name == "pass_rate"]
        assert metric.read_text().split()[1:] == ["0.5", "1"]


def test_no_logger() -> None:
    assert build_loggers(compose_config("logger=none"), Path("nowhere")) == []


def test_a_logger_that_cannot_start_is_one_clear_error(tmp_path: Path) -> None:
    cfg = compose_config("logger=csv", "+logger.csv.no_such_setting=1")
    with pytest.raises(ConfigError, match=r"logger\.csv cannot start: TypeError.*no_such_setting"):
        build_loggers(cfg, tmp_path)
