"""The page `docs/configuration.md`: every key with type, default, allowed values and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from arise.config import schemas
from arise.config_limits import CHOICES, RANGES, STUDY_RANGES, Range
from arise.reference.files import ConfigFile, Entry, read_file
from arise.reference.schemas import UNIONS, is_map, type_of, type_of_argument
from arise.study.settings import StudyConfig

_WORDS = re.compile(r"\w+(?: \| \w+)+")
_UNDER_A_NAME = re.compile(r"\.(?:candidates|extra)\.\w+\.")
_TABLE = "| key | type | default | allowed | meaning |\n|---|---|---|---|---|"
_TARGET = "what is built"
# Groups whose files set keys of other groups.
_GLOBAL = ("scale", "experiment", "debug")
_HIDDEN = ("hydra",)
_INTRO = Path(__file__).with_name("intro.md")


class Reference:
    """Everything that is known about the files of a `configs/` folder.

    Args:
        configs: The folder.

    Raises:
        ValueError: A key has no meaning: no comment in its file, in one that it builds on, or in
            another file of its group.
    """

    def __init__(self, configs: Path) -> None:
        paths = sorted(configs.rglob("*.yaml"))
        read = [read_file(path, configs=configs) for path in paths]
        self._files = {(file.group, file.name): file for file in read}
        self._schemas = {**schemas(), (None, "study_schema"): StudyConfig}
        self._scaled = {
            entry.name
            for (group, _), file in self._files.items()
            if group == "scale"
            for entry in file.entries
        }

    def page(self) -> str:
        """The whole page, in Markdown."""
        train = self._files["", "train"]
        groups = [group for group, _ in _choices(train)]
        also = sorted({group for group, _ in self._files} - {"", *groups} - set(_HIDDEN))
        parts = [
            _INTRO.read_text(encoding="utf-8"),
            "## train.py",
            _sentence(train),
            self._group_table(train),
        ]
        parts += [self._table(train)]
        for group in [g for g in groups if g not in (*_GLOBAL, *_HIDDEN) and self._of(g)]:
            parts += self._group(group)
        parts += self._globals()
        for name, own in (("evaluate", also), ("study", [])):
            file = self._files["", name]
            parts += [f"## {name}.py", _sentence(file)]
            if any(isinstance(default, dict) for default in file.defaults) and own:
                parts.append(self._group_table(file))
            parts.append(self._table(file))
            for group in own:
                parts += self._group(group)
        return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"

    def _of(self, group: str) -> list[ConfigFile]:
        return [file for (own, _), file in self._files.items() if own == group]

    def _group_table(self, root: ConfigFile) -> str:
        """Which file of each group is taken, and which there are."""
        rows = ["| group | default | choices |", "|---|---|---|"]
        for group, choice in _choices(root):
            if group in _HIDDEN:
                continue
            names = ", ".join(f"`{file.name}`" for file in self._of(group))
            default = {None: "none", "???": "**to be set**"}.get(choice, f"`{choice}`")
            anchor = f"[`{group}`](#{group})" if group != "local" else group
            rows.append(f"| {anchor} | {default} | {names or 'a file of yours'} |")
        return "\n".join(rows)

    def _group(self, group: str) -> Iterator[str]:
        yield f"## {group}"
        for file in self._of(group):
            yield f"### {group}={file.name}"
            parents = [name for name in file.parents if "schema" not in name]
            basis = f" As `{parents[0]}`, but:" if parents and file.entries else ""
            yield _sentence(file) + basis
            yield self._table(file)

    def _globals(self) -> Iterator[str]:
        """Scales side by side, experiments and debug as lists."""
        scales = self._of("scale")
        yield "## scale"
        yield "\n".join(f"- `scale={file.name}`: {_sentence(file)}" for file in scales)
        keys = dict.fromkeys(
            entry.name for file in scales for entry in file.entries if not entry.is_heading
        )
        chosen = dict.fromkeys(key for file in scales for key in _overridden(file))
        rows = [f"| key | {' | '.join(f'`{file.name}`' for file in scales)} |"]
        rows.append("|---" * (len(scales) + 1) + "|")
        for group in chosen:
            cells = [_overridden(file).get(group) for file in scales]
            rows.append(_row(f"`{group}`", *(f"`{cell}`" if cell else "–" for cell in cells)))
        for key in keys:
            values = [{e.name: e.text for e in file.entries}.get(key) for file in scales]
            rows.append(_row(f"`{key}`", *(f"`{v}`" if v else "–" for v in values)))
        yield "\n".join(rows)
        for group in ("experiment", "debug"):
            yield f"## {group}"
            rows = ["| file | what it is | it sets |", "|---|---|---|"]
            for file in self._of(group):
                sets = [f"{name}={choice}" for name, choice in _overridden(file).items()]
                sets += [f"{e.name}={e.text}" for e in file.entries if not e.is_heading]
                rows.append(
                    _row(f"`{file.name}`", _sentence(file), ", ".join(f"`{one}`" for one in sets))
                )
            yield "\n".join(rows)

    def _table(self, file: ConfigFile) -> str:
        schema = self._schema(file)
        rows = [_TABLE]
        maps: list[tuple[str, ...]] = []
        for entry in file.entries:
            if any(entry.path[: len(path)] == path for path in maps):
                continue
            if is_map(schema, entry.path) and entry.is_heading:
                maps.append(entry.path)
                rows.append(self._map_row(file, entry))
            elif entry.is_heading:
                if entry.comment:
                    rows.append(_row(f"`{_full(file, entry)}`", "", "", "", entry.comment))
            else:
                rows.append(self._entry_row(file, entry, schema))
        return "\n".join(rows) if len(rows) > 1 else ""

    def _map_row(self, file: ConfigFile, entry: Entry) -> str:
        inside = len(entry.path) + 1
        count = sum(e.path[:-1] == entry.path and len(e.path) == inside for e in file.entries)
        meaning = self._meaning(file, entry)
        return _row(f"`{_full(file, entry)}`", "map", f"{count} entries", "any", meaning)

    def _entry_row(self, file: ConfigFile, entry: Entry, schema: type | None) -> str:
        key = _full(file, entry)
        kind = self._kind(file, entry, schema)
        if entry.value == "???":
            default = "*scale*" if key in self._scaled else "**to be set**"
        else:
            default = f"`{entry.text}`"
        meaning = self._meaning(file, entry)
        allowed = _allowed(key, kind, meaning, is_study=file.name == "study")
        return _row(f"`{key}`", kind, default, allowed, meaning)

    def _kind(self, file: ConfigFile, entry: Entry, schema: type | None) -> str:
        """From the schema, the signature of what is built, or the value."""
        *above, name = entry.path
        if name == "_target_":
            return "dotted path"
        for other in file.entries:
            if above and other.path == (*above, "_target_"):
                words = type_of_argument(other.value, name)
                if words:
                    return words
        path = entry.path
        if path[0] == "candidates" and len(path) > 2:
            schema, path = self._schemas.get((file.group, f"{path[1]}_schema")), path[2:]
        of_group = [own for (group, _), own in self._schemas.items() if group == file.group]
        found = [type_of(own, path, entry.value) for own in (schema, *of_group)]
        return UNIONS.get(_plain(file, entry)) or next((w for w in found if w != "any"), "any")

    def _schema(self, file: ConfigFile) -> type | None:
        """The file's own or its parent's."""
        for name in file.parents:
            own = self._schemas.get((file.group or None, name))
            if own is not None:
                return own
            parent = self._files.get((file.group, name))
            if parent is not None:
                return self._schema(parent)
        return None

    def _meaning(self, file: ConfigFile, entry: Entry) -> str:
        """From the file itself, those it builds on, or another one of the group."""
        if entry.path[-1] == "_target_":
            return entry.comment or _TARGET
        if entry.comment:
            return entry.comment
        path = entry.path
        others = [self._files[file.group, name] for name in self._ancestors(file)]
        if path[0] == "candidates":
            others, path = [self._files[file.group, path[1]]], path[2:]
        elif path[0] == "extra" and len(path) > 2:
            others, path = [file], path[2:]
        for other in (*others, *self._of(file.group)):
            for own in other.entries:
                if own.path == path and own.comment:
                    return own.comment
        raise ValueError(f"configs/{file.group}/{file.name}.yaml: {entry.name} has no comment")

    def _ancestors(self, file: ConfigFile) -> Iterator[str]:
        for name in file.parents:
            parent = self._files.get((file.group, name))
            if parent is not None:
                yield name
                yield from self._ancestors(parent)


def _choices(root: ConfigFile) -> list[tuple[str, str | None]]:
    """Groups of a defaults list with what is taken."""
    return [
        (str(group).removeprefix("optional "), choice)
        for default in root.defaults
        if isinstance(default, dict)
        for group, choice in default.items()
    ]


def _overridden(file: ConfigFile) -> dict[str, str]:
    """Groups whose choice a file changes."""
    return {
        str(group).removeprefix("override /"): str(choice)
        for default in file.defaults
        if isinstance(default, dict)
        for group, choice in default.items()
    }


def _sentence(file: ConfigFile) -> str:
    return _cell(file.head)


def _full(file: ConfigFile, entry: Entry) -> str:
    return f"{file.group}.{entry.name}" if file.group else entry.name


def _plain(file: ConfigFile, entry: Entry) -> str:
    """The key as it would be without a candidate's or a further set's name."""
    return _UNDER_A_NAME.sub(".", _full(file, entry))


def _allowed(key: str, kind: str, meaning: str, *, is_study: bool) -> str:
    plain = _UNDER_A_NAME.sub(".", key)
    limits = STUDY_RANGES if is_study else RANGES
    if plain in CHOICES:
        return ", ".join(f"`{word}`" for word in CHOICES[plain])
    if plain in limits:
        return _interval(limits[plain])
    words = _WORDS.match(meaning)
    if words:
        return ", ".join(f"`{word}`" for word in words[0].split(" | "))
    return "`true`, `false`" if kind == "bool" else "any"


def _interval(limits: Range) -> str:
    return str(limits).replace("inf", "∞")


def _row(*cells: str) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    """A text as a table takes it."""
    return text.replace("|", "\\|")


def render(configs: Path) -> str:
    """The page for a folder of configuration files."""
    return Reference(configs).page()


def undocumented_numbers(configs: Path) -> Sequence[str]:
    """Keys with a number and no range, but for those of `trainer`, which Lightning checks."""
    found = []
    for path in sorted(configs.rglob("*.yaml")):
        file = read_file(path, configs=configs)
        if file.group in ("trainer", *_GLOBAL, *_HIDDEN):
            continue
        for entry in file.entries:
            is_number = isinstance(entry.value, int | float) and not isinstance(entry.value, bool)
            key = _full(file, entry)
            if is_number and _allowed(key, "", "", is_study=file.name == "study") == "any":
                found.append(key)
    return found
