"""The scalars that `docs/metrics.md` documents."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runs import ROOT

_ROW = re.compile(r"\| `([a-z_<>]+/[a-z_<>0-9]+)` \|")


def documented_scalars() -> list[str]:
    """Names as documented; `<word>` stands for any part."""
    return _ROW.findall((ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"))


def as_pattern(name: str) -> re.Pattern[str]:
    """What a documented name stands for."""
    parts = re.split(r"<[a-z_]+>", name)
    return re.compile("[a-zA-Z0-9_-]+".join(map(re.escape, parts)))


def undocumented(names: Iterable[str]) -> list[str]:
    """Those that no documented name stands for."""
    patterns = [as_pattern(name) for name in documented_scalars()]
    return [name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)]
