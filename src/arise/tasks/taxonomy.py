"""The registry of task types (Appendix C.2): operations, each with definition and criteria."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from arise.errors import ConfigError
from arise.rubrics.payloads import TaskTypeEntry

BUILT_IN = Path(__file__).parent / "taxonomy.yaml"
_FIELDS = ("name", "definition", "inclusion", "exclusion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxonomy:
    """The task types d to choose from.

    Attributes:
        types: The entries, in the order in which the annotator sees them.
        domains: Names of the broad domains.
        frequent_in: For each type, the domains in which it is frequent; the annotator does not
            see them.
        sha256: First 16 hex digits of the file's hash; goes into every annotation.
    """

    types: tuple[TaskTypeEntry, ...]
    domains: tuple[str, ...]
    frequent_in: dict[str, tuple[str, ...]]
    sha256: str

    @property
    def names(self) -> tuple[str, ...]:
        """The types' names."""
        return tuple(entry.name for entry in self.types)


def read_taxonomy(path: Path = BUILT_IN) -> Taxonomy:
    """Read a registry; see `taxonomy.yaml` for the form. `domains` may be left out.

    Raises:
        ConfigError: The file cannot be read, a field is missing or empty, or a name occurs twice.
    """
    try:
        data = path.read_bytes()
        content = yaml.safe_load(data)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(
            f"taxonomy {path} cannot be read: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("types"), list):
        raise ConfigError(f"taxonomy {path} must be a table with a list `types`")
    domains = content.get("domains") or {}
    entries = [_entry(entry, n, path) for n, entry in enumerate(content["types"], start=1)]
    names = [entry.name.casefold() for entry in entries]
    for entry in entries:
        if names.count(entry.name.casefold()) > 1:
            raise ConfigError(f"taxonomy {path}: task type {entry.name!r} occurs twice")
    return Taxonomy(
        types=tuple(entries),
        domains=tuple(domains.values()),
        frequent_in={entry["name"]: _domains(entry, domains, path) for entry in content["types"]},
        sha256=hashlib.sha256(data).hexdigest()[:16],
    )


def _entry(entry: Any, number: int, path: Path) -> TaskTypeEntry:
    for field in _FIELDS:
        value = entry.get(field) if isinstance(entry, dict) else None
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(
                f"taxonomy {path}: task type number {number} needs a text `{field}`, got {value!r}"
            )
    return TaskTypeEntry(**{field: entry[field] for field in _FIELDS})


def _domains(entry: dict[str, Any], domains: dict[str, str], path: Path) -> tuple[str, ...]:
    codes = entry.get("domains") or []
    unknown = [code for code in codes if code not in domains]
    if unknown:
        raise ConfigError(
            f"taxonomy {path}: task type {entry['name']!r} names domain {unknown[0]!r}; "
            f"known: {', '.join(domains)}"
        )
    return tuple(domains[code] for code in codes)
