"""Time left, over all runs."""

from pathlib import Path

from omegaconf import OmegaConf

from arise.study.progress import Progress, clock_text
from arise.study.settings import RunSpec
from arise.study.state import RunState


def state(experiment: str, steps: int) -> RunState:
    spec = RunSpec(
        experiment=experiment,
        seed=1,
        parent=Path("x"),
        overrides=(),
        config=OmegaConf.create({"trainer": {"max_steps": 60}}),
    )
    return RunState(spec=spec, folder=None, steps=steps)


def test_time_left_is_this_sessions_pace_times_the_iterations_to_come() -> None:
    now, lines = [0.0], []
    progress = Progress(
        [state("a", 60), state("b", 40), state("c", 0)],
        clock=lambda: now[0],
        say=lines.append,
    )
    assert lines == ["1 of 3 runs are finished already"]
    assert progress.seconds_left() is None
    now[0] = 30.0
    progress.step("b seed 1", 50)  # 10 iterations in 30 s, 10 + 60 to come
    assert progress.seconds_left() == 210.0
    now[0] = 61.0
    progress.step("b seed 1", 60)
    assert lines[-1] == "b seed 1: step 60/60. 1 of 3 runs done, about 3 min left"
    progress.ended("b seed 1", 0)
    assert lines[-1] == "b seed 1: finished. 2 of 3 runs done, about 3 min left"
    progress.ended("c seed 1", 1)
    assert lines[-1].startswith("c seed 1: ended with exit code 1. 3 of 3 runs done")


def test_clock() -> None:
    assert [clock_text(s) for s in (29, 90, 3599, 3900, 90_000)] == [
        "0 min",
        "2 min",
        "1 h 00 min",
        "1 h 05 min",
        "25 h 00 min",
    ]
