"""Fenced blocks of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runs import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAMS = (
    "python python3 torchrun srun sbatch make pip tensorboard chmod docker "
    "vllm export ssh git curl ."
).split()
"""What a line starts with that is a command."""

_FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"\A# (mine/\S+)\n")
_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=\S*")
_OVERRIDE = re.compile(r"[+~]{0,2}[a-z_][\w./@]*=\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command line of a page.

    Attributes:
        page: The page's name.
        variables: Environment variables set before it.
        words: Program and arguments.
    """

    page: str
    variables: tuple[str, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join((*self.variables, *self.words))}"


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each fenced block."""
    for found in _FENCE.finditer(page.read_text(encoding="utf-8")):
        yield found[1], found[2]


def files(page: Path) -> dict[str, str]:
    """Blocks that are files, by the path in their first line."""
    return {found[1]: text for _, text in blocks(page) if (found := _FILE.match(text)) is not None}


def commands(page: Path) -> list[Command]:
    """Command lines of blocks that are no files, in their order.

    With `$` before some lines these are the commands and the others what they print. Otherwise a
    block whose first line is a command holds nothing else, and other blocks hold none: a command
    that is not recognised is an error, not skipped.
    """
    found: list[Command] = []
    for language, text in blocks(page):
        if language not in ("", "sh", "bash", "console") or _FILE.match(text):
            continue
        lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        elif not _is_command(lines[0]):
            assert not any(map(_is_command, lines)), f"{page.name}: {lines}"
            continue
        for line in lines:
            assert _is_command(line), f"{page.name}: {line}"
            words = shlex.split(line, comments=True)
            for part in " ".join(map(shlex.quote, words)).split(" '&&' "):
                found.append(_command(page.name, shlex.split(part)))
    return found


def _is_command(line: str) -> bool:
    words = line.split()
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    return bool(words) and words[0] in PROGRAMS


def _command(page: str, words: list[str]) -> Command:
    split = next(i for i, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word))
    return Command(page=page, variables=tuple(words[:split]), words=tuple(words[split:]))


def for_hydra(words: Sequence[str]) -> list[str]:
    """Overrides as `compose` takes them: `--config-dir` is a search path there."""
    rest = list(words)
    if "--config-dir" in rest:
        position = rest.index("--config-dir")
        folder = Path(rest[position + 1]).resolve()
        rest[position : position + 2] = [f"hydra.searchpath=[file://{folder}]"]
    return rest


def spans(page: Path) -> list[str]:
    """Texts of inline code, line breaks as spaces; of the generated page only what is written."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    if page.name == "configuration.md":
        text = text.partition("\n## train.py")[0]
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def inline_commands(page: Path) -> list[Command]:
    """Inline code that is a command with arguments."""
    return [
        _command(page.name, shlex.split(span))
        for span in spans(page)
        if span.split()[0] in PROGRAMS and len(span.split()) > 1
    ]


def inline_overrides(page: Path) -> list[tuple[str, ...]]:
    """Inline code that sets configuration, such as `rubrics=none curriculum.sampler=vade`."""
    found = []
    for span in spans(page):
        words = shlex.split(span) if span.count("'") % 2 == 0 else span.split()
        if words and all(_OVERRIDE.match(word) for word in words):
            found.append(tuple(words))
    return list(dict.fromkeys(found))
