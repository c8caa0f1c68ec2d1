"""Observable behaviours, on traces written by hand."""

from __future__ import annotations

import pytest

from arise.tasks.shellworld.behaviours import Behaviour, Step, observe_behaviours, written

TASK = "Use pack.sh to make oak.txt from elm.txt. See rules.md."


def steps(*pairs: tuple[str, str]) -> list[Step]:
    return [Step(command=command, observation=observation) for command, observation in pairs]


def shown(
    behaviour: Behaviour, trace: list[Step], *, task: str = TASK, submitted: bool = True
) -> bool | None:
    return observe_behaviours(task, trace, submitted=submitted)[behaviour]


def test_reading_counts_before_the_first_write_only() -> None:
    read, write = ("cat rules.md", "keep it plain"), ("sh pack.sh elm.txt oak.txt", "[ok]")
    assert shown(Behaviour.READ, steps(read, write)) is True
    assert shown(Behaviour.READ, steps(write, read)) is False
    assert shown(Behaviour.READ, steps(("ls", "a"), read, write)) is True
    assert shown(Behaviour.READ, steps(write)) is False
    assert shown(Behaviour.READ, []) is False
    assert shown(Behaviour.READ, steps(write), task="Sort a.txt into b.txt.") is None


def test_heeding_needs_the_named_word() -> None:
    failed = ("sh pack.sh elm.txt oak.txt", "[exit 2]\nneed volume jade")
    right = ("sh pack.sh elm.txt oak.txt jade", "[ok]")
    other = ("sh pack.sh elm.txt oak.txt opal", "[exit 2]\nneed volume jade")
    assert shown(Behaviour.HEED, steps(failed, right)) is True
    assert shown(Behaviour.HEED, steps(failed, failed, right)) is False
    assert shown(Behaviour.HEED, steps(failed, other)) is False
    assert shown(Behaviour.HEED, steps(failed)) is False
    # The episode was cut before an answer was possible.
    assert shown(Behaviour.HEED, steps(failed), submitted=False) is None
    assert shown(Behaviour.HEED, steps(right)) is None


def test_heeding_a_missing_file_means_to_look() -> None:
    failed = (
        "sort elm.txt > oak.txt",
        "[exit 2]\nsort: cannot read: elm.txt: No such file or directory",
    )
    assert shown(Behaviour.HEED, steps(failed, ("ls", "elm.old"))) is True
    assert shown(Behaviour.HEED, steps(failed, ("cat oak.txt", "[ok]"))) is False


def test_verifying_is_a_look_at_what_was_written() -> None:
    write = ("sort -u elm.txt > oak.txt", "[ok]")
    failed = ("sort -u elm.txt > oak.txt", "[exit 2]\nno")
    assert shown(Behaviour.VERIFY, steps(write, ("cat oak.txt", "x"))) is True
    assert shown(Behaviour.VERIFY, steps(("cat oak.txt", "x"), write)) is False
    assert shown(Behaviour.VERIFY, steps(write, ("cat elm.txt", "x"))) is False
    assert shown(Behaviour.VERIFY, steps(write)) is False
    assert shown(Behaviour.VERIFY, steps(failed)) is None
    moved = ("mv elm.txt yew.txt attic", "[ok]")
    assert shown(Behaviour.VERIFY, steps(moved, ("ls attic", "elm.txt"))) is True


def test_a_repair_of_the_script_is_not_the_output() -> None:
    repair = ("sed -i s/mode=a/mode=b/ run.sh", "[ok]")
    assert shown(Behaviour.VERIFY, steps(repair)) is None


def test_finishing_is_the_last_step_of_the_instruction() -> None:
    task = TASK + " Then write jade to log.log."
    write = ("sh pack.sh elm.txt oak.txt", "[ok]")
    assert shown(Behaviour.FINISH, steps(write), task=task) is False
    assert shown(Behaviour.FINISH, steps(write, ("echo jade > log.log", "[ok]")), task=task) is True
    removing = TASK + " At the end delete old.tmp."
    assert shown(Behaviour.FINISH, steps(write, ("rm old.tmp", "[ok]")), task=removing) is True
    assert shown(Behaviour.FINISH, steps(write)) is None


def test_thrift() -> None:
    write, look = ("sh pack.sh elm.txt oak.txt", "[ok]"), ("cat oak.txt", "x")
    assert shown(Behaviour.THRIFT, steps(write, look)) is True
    assert shown(Behaviour.THRIFT, steps(write, write)) is False
    assert shown(Behaviour.THRIFT, steps(("ls", "x"), write)) is False
    assert shown(Behaviour.THRIFT, steps(write), submitted=False) is False
    assert shown(Behaviour.THRIFT, []) is None


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("cat a.txt", ()),
        ("cat a.txt b.txt > c.txt", ("c.txt",)),
        ("sh pack.sh a.txt b.txt key", ("b.txt",)),
        ("sed -i s/a=.*/a=b/ c.conf d.conf", ("c.conf", "d.conf")),
        ("mv a.txt b.txt attic", ("attic",)),
        ("rm a.tmp", ("a.tmp",)),
        ("", ()),
    ],
)
def test_written(command: str, files: tuple[str, ...]) -> None:
    assert written(command) == files
