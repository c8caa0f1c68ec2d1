"""The suite: determinism, breadth, splits, and a folder the loader accepts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from arise.errors import ConfigError
from arise.tasks.corpus import load_corpus
from arise.tasks.shellworld.families import FAMILIES
from arise.tasks.shellworld.folder import write
from arise.tasks.shellworld.generate import MIXES, generate_tasks, main
from arise.tasks.shellworld.spec import Need
from arise.tasks.shellworld.words import NAMES


def digest(folder: Path) -> str:
    content = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content.update(str(path.relative_to(folder)).encode())
        content.update(path.read_bytes() if path.is_file() else b"")
    return content.hexdigest()


def test_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        main(["--count", "20", "--seed", "3", "--out", str(tmp_path / name)])
    main(["--count", "20", "--seed", "4", "--out", str(tmp_path / "three")])
    assert digest(tmp_path / "one") == digest(tmp_path / "two") != digest(tmp_path / "three")


def test_a_longer_suite_begins_with_the_shorter_one() -> None:
    assert generate_tasks("train", 30, 1)[:10] == generate_tasks("train", 10, 1)


def test_breadth() -> None:
    train = [family for family in FAMILIES if not family.unseen]
    assert len(train) >= 14
    assert len(FAMILIES) - len(train) >= 2
    assert len({tag for family in train for tag in family.tags}) >= 8
    assert all(family.tags for family in train)
    assert sum(len(family.tags) > 1 for family in train) >= 10


def test_families_that_always_need_a_behaviour() -> None:
    def always(need: Need) -> int:
        return sum(
            bool(family.mixed) and all(need in needs for needs in family.mixed)
            for family in FAMILIES
            if not family.unseen
        )

    assert always(Need.READ) >= 5
    assert always(Need.VERIFY) >= 3
    # Both begin with a failing command.
    failing = [f for f in FAMILIES if f.mixed and all(Need.HEED in n for n in f.single)]
    assert {"missing_input", "fix_script"} <= {family.name for family in failing}


def test_unseen_families_are_never_in_training() -> None:
    unseen = {spec.family for spec in generate_tasks("unseen", 60, 0)}
    assert unseen == {"encode_text", "deploy_site"}
    for split in ("train", "heldout"):
        for mix in MIXES:
            assert unseen.isdisjoint(s.family for s in generate_tasks(split, 300, 0, mix))


def test_heldout_tasks_are_not_training_tasks() -> None:
    train = {(s.instruction, tuple(s.draft.files.items())) for s in generate_tasks("train", 512, 0)}
    held = {
        (s.instruction, tuple(s.draft.files.items())) for s in generate_tasks("heldout", 480, 0)
    }
    assert not train & held


def test_hidden_needs_come_in_conjunctions() -> None:
    hidden = {Need.READ, Need.HEED, Need.VERIFY}
    for spec in generate_tasks("train", 400, 2):
        assert len(spec.needs & hidden) != 1 or spec.needs == {Need.READ, Need.FINISH}
    assert {len(spec.needs) for spec in generate_tasks("train", 400, 2, "single")} == {0, 1}


def test_the_instruction_does_not_tell_a_hidden_need() -> None:
    """Words that a fix asks for stand nowhere in the instruction."""
    for spec in generate_tasks("train", 300, 5):
        for fix in (spec.plan.heed, spec.plan.verify):
            if fix is not None and fix.extra:
                assert fix.word not in spec.instruction
        assert not spec.plan.rule or spec.plan.rule not in spec.instruction


def test_names_are_distinct_words() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 250
    assert all(name.isascii() and name.islower() and name.isalpha() for name in NAMES)


def test_the_loader_reads_every_task(tmp_path: Path) -> None:
    specs = generate_tasks("train", 60, 0) + generate_tasks("unseen", 5, 0)
    for spec in specs:
        write(spec, tmp_path / spec.id)
    tasks = {Path(task.path).name: task for task in load_corpus(tmp_path)}
    assert set(tasks) == {spec.id for spec in specs}
    for spec in specs:
        task = tasks[spec.id]
        assert task.instruction.strip() == spec.instruction
        assert task.tags == spec.tags
        assert task.domain == spec.domain
        assert task.agent_timeout_s == 60.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("test", 1, 0), "--split 'test' is not one of train, heldout, unseen"),
        (("train", 1, 0, "easy"), "--mix 'easy' is not one of conjunctive, single"),
        (("train", -1, 0), "--count -1 must not be negative"),
    ],
)
def test_bad_requests(arguments: tuple[str, int, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        generate_tasks(*arguments)
