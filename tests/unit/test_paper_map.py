"""`docs/paper_map.md` is whole: equations, algorithm lines, tables, figures, variants, appendices.

That the code and the tests it names exist is checked for every page by `test_docs.py`.
"""

from __future__ import annotations

import re

import pytest

from arise.types import Capability
from runs import ROOT

_TEXT = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
_CODE = re.compile(r"`([\w/]+\.py):[A-Za-z_][\w.]*`")
_TEST = re.compile(r"`[\w/]+\.py::test_\w+`")
_CONFIG = re.compile(r"`(configs/[\w/.]+|[\w/]+\.(?:yaml|md)|[\w/]+/)`")


def rows(section: str) -> dict[str, list[str]]:
    """Cells after the first, by the first, of a section's table."""
    _, _, rest = _TEXT.partition(f"## {section}\n")
    assert rest, section
    table = rest.partition("\n## ")[0]
    lines = re.findall(r"^\| (.+) \|$", table, re.MULTILINE)[1:]
    found = [[cell.strip() for cell in line.split(" | ")] for line in lines if line[0] != "-"]
    assert len({row[0] for row in found}) == len(found)
    return {row[0]: row[1:] for row in found}


def numbers(first_cells: list[str]) -> list[int]:
    """Numbers of cells such as 4, 8–12 or 1, 2."""
    found: list[int] = []
    for cell in first_cells:
        for part in cell.split(", "):
            first, _, last = part.partition("–")
            found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.parametrize(
    ("section", "count"), [("Equations", 21), ("Algorithm 1", 29), ("Tables", 11), ("Figures", 6)]
)
def test_every_number_of_the_paper_is_mapped(section: str, count: int) -> None:
    assert numbers(list(rows(section))) == list(range(1, count + 1))


@pytest.mark.parametrize(
    "section", ["Equations", "Algorithm 1", "Tables", "Variants (Section 4.3, Appendix D.3)"]
)
def test_every_row_names_code_or_configuration_and_a_test(section: str) -> None:
    for name, (_, code, tests) in rows(section).items():
        assert _CODE.search(code) or _CONFIG.search(code) or code == "–", name
        assert _TEST.search(tests), name


@pytest.mark.parametrize("section", ["Equations", "Algorithm 1"])
def test_equations_and_algorithm_lines_are_code(section: str) -> None:
    assert all(_CODE.search(code) for _, code, _ in rows(section).values())


def test_every_experiment_of_the_paper_is_a_row() -> None:
    folder = ROOT / "configs" / "experiment"
    shipped = {
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")
    }
    named = {name.strip("`") for name in rows("Variants (Section 4.3, Appendix D.3)")}
    assert named == {name for name in shipped if not name.startswith("control/")}


def test_every_appendix_with_a_method_is_a_row() -> None:
    wanted = "B.1 B.2 B.3 B.4 B.5 B.6 C.1 C.2 D.1 D.2 D.4 E F G H".split()
    assert [name for cell in rows("Appendices") for name in cell.split(", ")] == wanted


def test_configuration_that_it_names_exists() -> None:
    for name in _CONFIG.findall(_TEXT.partition("\n## ")[2]):
        at = ROOT / name if name.startswith("configs/") else ROOT / "src" / "arise" / name
        assert at.exists(), name


def test_the_five_capabilities() -> None:
    """Table 3, in its order."""
    assert [capability.value for capability in Capability] == [
        "understanding",
        "execution",
        "verification",
        "debugging",
        "efficiency",
    ]
