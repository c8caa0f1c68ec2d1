"""The choice of a kind of sandbox."""

from pathlib import Path

import pytest

from arise.environments.auto import AutoFactory
from arise.errors import ConfigError
from arise.types import Task


class Kind:
    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.num_checks = 0
        self.is_closed = False

    def check(self) -> None:
        self.num_checks += 1
        if self.problem:
            raise ConfigError(self.problem)

    def unsupported(self, task: Task) -> str | None:
        return f"not {task.id}"

    def create(self, task: Task, *, name: str) -> tuple[str, str]:
        return task.id, name

    def close(self) -> None:
        self.is_closed = True


TASK = Task(id="a", instruction="", path=Path("/"), tests=Path("/"))


def test_first_that_works_is_taken_and_asked() -> None:
    broken, good, unused = Kind("no namespaces"), Kind(), Kind()
    auto = AutoFactory(candidates={"bubblewrap": broken, "docker": good, "other": unused})
    assert auto.unsupported(TASK) == "not a"
    assert auto.create(TASK, name="n") == ("a", "n")
    assert (broken.num_checks, good.num_checks, unused.num_checks) == (1, 1, 0)
    auto.close()
    assert broken.is_closed
    assert good.is_closed


def test_error_lists_every_reason() -> None:
    auto = AutoFactory(
        candidates={"bubblewrap": Kind("no namespaces"), "docker": Kind("no daemon")}
    )
    with pytest.raises(ConfigError) as caught:
        auto.check()
    assert str(caught.value).splitlines() == [
        "environment=auto: no kind of sandbox works on this machine.",
        "- bubblewrap: no namespaces",
        "- docker: no daemon",
    ]


def test_no_candidates() -> None:
    with pytest.raises(ConfigError, match=r"environment\.candidates"):
        AutoFactory(candidates={})
