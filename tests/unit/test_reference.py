"""`docs/configuration.md` is current, and says of every key what it has to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from arise.config import Rollout
from arise.reference.__main__ import main
from arise.reference.files import read_file
from arise.reference.page import render, undocumented_numbers
from arise.reference.schemas import type_of, type_of_argument
from runs import ROOT

CONFIGS = ROOT / "configs"
PAGE = ROOT / "docs" / "configuration.md"
_ROW = re.compile(r"^\| `([\w.]+)` \|(.*)\|$", re.MULTILINE)


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]


def leaves(node: object, prefix: str) -> list[str]:
    """Keys with a value; maps that belong to the user (variables, mounts) are one key."""
    if not isinstance(node, dict) or not node or prefix.endswith((".env", ".files", ".mounts")):
        return [prefix]
    return [
        leaf
        for key, value in node.items()
        for leaf in leaves(value, f"{prefix}.{key}" if prefix else key)
    ]


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_files_say(page: str, tmp_path: Path) -> None:
    main([str(tmp_path / "page.md"), "--configs", str(CONFIGS)])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page, "run `make docs`"


def test_every_key_of_every_file_is_there(page: str) -> None:
    documented = {found[1] for found in _ROW.finditer(page)}
    for path in CONFIGS.rglob("*.yaml"):
        group = path.relative_to(CONFIGS).parts[0] if path.parent != CONFIGS else ""
        if group in ("hydra", "experiment", "debug"):
            continue
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        content.pop("defaults", None)
        prefix = "" if group == "scale" else group
        missing = set(leaves(content, prefix) if content else []) - documented
        assert not missing, path


def test_every_row_says_type_default_allowed_and_meaning(page: str) -> None:
    groups, _, rest = page.partition("## scale")
    for found in _ROW.finditer(groups + rest.partition("## evaluate.py")[2]):
        row = cells(found[2])
        # The row of a heading has nothing but a meaning.
        assert len(row) == 4, found[0]
        assert row[3], found[0]
        assert all(row[:3]) or not any(row[:3]), found[0]
        assert row[0] != "any", found[0]


def test_every_number_has_a_range() -> None:
    assert undocumented_numbers(CONFIGS) == []


def test_a_file_is_read_with_its_comments(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    path = tmp_path / "group" / "mine.yaml"
    path.write_text(
        "# Two lines\n# of head.\ndefaults:\n  - schema\n  - base\n\n"
        'a: "x # y"  # after the value\n# Above\n# the key.\nb:\n  c: [1, 2]   # inside\n'
        "d: |-   # of a block\n  long\n  text\n"
    )
    file = read_file(path, configs=tmp_path)
    assert (file.group, file.name, file.head) == ("group", "mine", "Two lines of head.")
    assert file.parents == ("schema", "base")
    assert [(e.name, e.text, e.comment, e.is_heading) for e in file.entries] == [
        ("a", "x # y", "after the value", False),
        ("b", "", "Above the key.", True),
        ("b.c", "[1, 2]", "inside", False),
        ("d", "long text", "of a block", False),
    ]


def test_a_key_without_a_meaning_is_refused(tmp_path: Path) -> None:
    for name in ("train", "evaluate", "study"):
        (tmp_path / f"{name}.yaml").write_text("# Root.\nnothing_says_what: 1\n")
    with pytest.raises(ValueError, match="nothing_says_what has no comment"):
        render(tmp_path)


def test_types_are_those_of_schemas_and_signatures() -> None:
    assert type_of(Rollout, ("max_in_flight",), None) == "int or null"
    assert type_of(Rollout, ("deterministic",), True) == "bool"
    assert type_of(None, ("any", "thing"), [1, 2]) == "list of int"
    target = "arise.modules.loading.PretrainedModel"
    assert type_of_argument(target, "chat_template") == "str or null"
    assert type_of_argument(target, "not_an_argument") == ""
