"""Configuration files as they are written: keys, values, and the comments that explain them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

_COMMENT = re.compile(r"\s*#\s?(.*)")
_MAX_VALUE_CHARS = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key of a file.

    Attributes:
        path: The key and the keys above it, within the file.
        value: Its value; `None` for a heading.
        text: The value as a reader sees it, shortened if long.
        comment: What the file says about it; empty if nothing.
        is_heading: Whether it holds other keys, which have entries of their own.
    """

    path: tuple[str, ...]
    value: Any
    text: str
    comment: str
    is_heading: bool = False

    @property
    def name(self) -> str:
        """The key as it is written on the command line, below the file's group."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """One file of `configs/`.

    Attributes:
        group: Its folder, empty for the files at the top.
        name: Its path below the folder, without ending.
        head: The comment that it begins with.
        defaults: Its defaults list.
        entries: Its keys in their order.
    """

    group: str
    name: str
    head: str
    defaults: tuple[Any, ...]
    entries: tuple[Entry, ...]

    @property
    def parents(self) -> tuple[str, ...]:
        """Files of the same group that it builds on, and its schema."""
        return tuple(d for d in self.defaults if isinstance(d, str) and d[0] not in "_/")


def read_file(path: Path, *, configs: Path) -> ConfigFile:
    """Read one file.

    Args:
        path: The file.
        configs: The folder of all groups.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    relative = path.relative_to(configs).with_suffix("").as_posix()
    group, _, name = relative.partition("/") if "/" in relative else ("", "", relative)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    entries: tuple[Entry, ...] = ()
    if isinstance(root, yaml.MappingNode):
        entries = tuple(e for e in _entries(root, (), lines) if e.path[0] != "defaults")
    content = yaml.safe_load(text) or {}
    return ConfigFile(
        group=group,
        name=name,
        head=_text(_head(lines)),
        defaults=tuple(content.get("defaults", ())),
        entries=entries,
    )


def _head(lines: list[str]) -> list[str]:
    """Lines of the comment that a file begins with."""
    return list(takewhile(lambda line: line.startswith("#"), lines))


def _text(comments: Sequence[str]) -> str:
    """Comment lines as one text, without what is meant for Hydra."""
    return " ".join(
        line.strip().lstrip("# ").rstrip() for line in comments if "# @package" not in line
    )


def _entries(node: yaml.MappingNode, above: tuple[str, ...], lines: list[str]) -> Iterator[Entry]:
    for key, value in node.value:
        path = (*above, key.value)
        comment = _comment(key, value, lines)
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield Entry(path=path, value=None, text="", comment=comment, is_heading=True)
            yield from _entries(value, path, lines)
        else:
            content = yaml.safe_load(yaml.serialize(value))
            yield Entry(path=path, value=content, text=_shown(value, content), comment=comment)


def _comment(key: yaml.Node, value: yaml.Node, lines: list[str]) -> str:
    """After the value, else in the lines above the key."""
    number = key.start_mark.line
    is_inline = value.start_mark.line == number and value.end_mark.line == number
    column = value.end_mark.column if is_inline else key.end_mark.column + 1
    rest = lines[number][column:]
    if not is_inline:
        rest = rest.lstrip().removeprefix("|-").removeprefix(">-")
    found = _COMMENT.fullmatch(rest)
    if found:
        return found[1].strip()
    own = lines[len(_head(lines)) : number]
    above = list(takewhile(lambda line: line.strip().startswith("#"), reversed(own)))
    return _text(above[::-1])


def _shown(node: yaml.Node, content: Any) -> str:
    """The value on one line; numbers as they are written."""
    if isinstance(node, yaml.ScalarNode):
        text = node.value if not isinstance(content, str) or content else '""'
        if content is None:
            text = "null"
    else:
        text = yaml.safe_dump(content, default_flow_style=True, width=10**6).strip()
    text = " ".join(text.split())
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 2]} …"
