"""`docs/metrics.md` against the source: every scalar is documented, and no other.

`tests/integration/test_arise.py` compares it with what a real run logs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from arise.callbacks.board import FIRST_PAGE
from arise.rubrics.judge_metrics import PROBLEMS
from arise.types import Capability, FailureKind, FinishReason
from documented import as_pattern, documented_scalars, undocumented
from runs import ROOT

GROUPS = (
    "loss ratio engine reward rubric pool sampler rollout staleness judge reflection criteria time "
    "system"
)
PREFIXES = (*GROUPS.split(), "evaluation")
_NAME = re.compile(rf"(?:{'|'.join(PREFIXES)}|\0)/[a-z0-9_\0]+")


def logged_names() -> Iterator[str]:
    """Names of scalars in the source; `\\0` where a part is put in when it runs."""
    for path in (ROOT / "src" / "arise").rglob("*.py"):
        if {"runs", "study"} & set(path.parts) or path.name == "board.py":
            continue  # readers of scalars
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {
            id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    p.value if isinstance(p, ast.Constant) else "\0" for p in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = "" if id(node) in inside else node.value
            else:
                continue
            if _NAME.fullmatch(text) and text != "pool/story":  # that one is a text
                yield text


LOGGED = sorted(set(logged_names()))


def fits(documented: str, logged: str) -> bool:
    """Whether a documented name can be what a name in the source becomes."""
    pattern = "[a-z0-9_<>]+".join(map(re.escape, logged.split("\0")))
    return re.fullmatch(pattern, documented) is not None


def test_the_source_was_read() -> None:
    assert {"loss/policy", "time/\0_s", "sampler/share_\0", "\0/requests"} <= set(LOGGED)


@pytest.mark.parametrize("name", LOGGED, ids=lambda name: name.replace("\0", "*"))
def test_every_scalar_of_the_source_is_documented(name: str) -> None:
    assert any(fits(documented, name) for documented in documented_scalars())


@pytest.mark.parametrize("name", documented_scalars())
def test_every_documented_scalar_is_in_the_source(name: str) -> None:
    assert any(fits(name, logged) for logged in LOGGED)


def test_names_that_are_made_of_lists_are_documented() -> None:
    names = [f"judge/{problem}" for problem in PROBLEMS]
    names += [f"rollout/failures_{kind}" for kind in FailureKind]
    names += [f"rollout/finish_{reason}_share" for reason in FinishReason]
    names += [f"rubric/pass_rate_{capability}" for capability in Capability]
    assert undocumented(names) == []


def test_the_first_page_of_tensorboard_shows_scalars_that_exist() -> None:
    assert undocumented(name for names in FIRST_PAGE.values() for name in names) == []


def test_every_row_says_meaning_unit_health_and_remedy() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) == len(documented_scalars()) == len(set(documented_scalars()))
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5, row
        assert all(cell not in ("", "–", "-") for cell in cells), row


def test_every_group_has_a_scalar() -> None:
    groups = {name.partition("/")[0] for name in documented_scalars()}
    assert set(GROUPS.split()) <= groups


def test_a_placeholder_stands_for_one_part() -> None:
    assert as_pattern("rollout/finish_<reason>_share").fullmatch("rollout/finish_turn_limit_share")
    assert not as_pattern("reward/pass_rate").fullmatch("reward/pass_rates")
