"""What the documentation names exists: code, tests, pages, faults."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))

CODE = re.compile(r"`([\w/]+\.py):([A-Za-z_][\w.]*)`")
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FAULT_ROW = re.compile(r"^\| ([A-Z]\d\d) \|(.*)\|(.*)\|$", re.MULTILINE)

# The areas tokens and log-probabilities, loss, advantage, sandbox, verifier, judge and reflection,
# sampler, checkpoint and resume, configuration, logging, weight sync.
_FAULTS = (
    "T02 T06 T07 T08 T11 T12 T13 T14 T15 T16 L01 L02 L04 L07 L08 A01 A03 A05 A07 A08 "
    "X02 X03 X04 X05 X06 X07 X11 X13 X14 X15 V01 V02 V04 V07 V08 V09 V11 "
    "H01 H02 H03 H05 H06 J04 J05 J07 J08 J09 J10 J11 R02 R04 R05 "
    "S01 S02 S03 S05 K02 K03 K06 K08 K09 K10 C01 C03 C04 C05 G01 G02 W02 W04 W05 W07"
).split()


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes and methods (`Class.method`) of a file; none if it does not exist."""
    if not path.is_file():
        return frozenset()
    found: set[str] = set()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                if isinstance(child, ast.ClassDef):
                    walk(child, f"{prefix}{child.name}.")

    walk(ast.parse(path.read_text(encoding="utf-8")), "")
    return frozenset(found)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_code_and_tests_that_a_page_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for file, name in CODE.findall(text):
        assert name in names_in(ROOT / "src" / "arise" / file), f"src/arise/{file}: {name}"
    for file, name in TEST.findall(text):
        assert name in names_in(ROOT / "tests" / file), f"tests/{file}: {name}"


@pytest.mark.parametrize("path", [ROOT / "README.md", *DOCS], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Pages, pictures and headings of this repository."""
    for target in _LINK.findall(_without_code(path.read_text(encoding="utf-8"))):
        place, _, anchor = target.partition("#")
        if place.startswith(("http://", "https://")):
            continue
        page = (path.parent / place) if place else path
        assert page.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(page), f"{path.name}: {target}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {target.partition("#")[0] for target in _LINK.findall(index)}
    assert {page.name for page in DOCS} - {"README.md"} <= linked


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """Names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _without_code(page.read_text(encoding="utf-8")), re.M)
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    )


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_every_fault_has_a_test_of_its_name_or_a_reason() -> None:
    rows = {
        fault: answer
        for page in (ROOT / "docs").glob("faults*.md")
        for fault, _, answer in _FAULT_ROW.findall(page.read_text(encoding="utf-8"))
    }
    assert set(_FAULTS) <= set(rows)
    for fault, answer in rows.items():
        tests = TEST.findall(answer)
        assert tests or "cannot occur:" in answer, fault
        assert all(fault in name for _, name in tests), fault
