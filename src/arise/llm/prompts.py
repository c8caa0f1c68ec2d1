"""Prompts as Markdown files: a system part, a user part, and a hash that names the exact text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from arise.errors import ConfigError
from arise.llm.chat import CriteriaPurpose, Purpose

SYSTEM_HEADING = "# System"
USER_HEADING = "# User"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt file.

    Attributes:
        purpose: Which of the method's prompts this is.
        system: Template of the system message.
        user: Template of the user message.
        sha256: First 16 hex digits of the file's hash; goes into whatever the prompt produces.
    """

    purpose: Purpose | CriteriaPurpose
    system: str
    user: str
    sha256: str

    def render(self, values: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
        """The messages, with `values` filled in.

        Values are inserted as they are and never read as template code, whatever they contain.

        Raises:
            ConfigError: The template asks for a value that does not exist, or is malformed.
        """
        try:
            return tuple(
                {"role": role, "content": _compiled(source).render(values)}
                for role, source in (("system", self.system), ("user", self.user))
            )
        except TemplateError as error:
            raise ConfigError(
                f"prompt '{self.purpose}' cannot be rendered: {error}; values on offer: "
                f"{', '.join(sorted(values))}"
            ) from error


@lru_cache(maxsize=64)
def _compiled(source: str) -> Template:
    environment = SandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source)


def read_prompt(purpose: Purpose | CriteriaPurpose, directory: Path) -> Prompt:
    """Read `<directory>/<purpose>.md`.

    Raises:
        ConfigError: The file is missing or has not exactly the two headings.
    """
    path = directory / f"{purpose.value}.md"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"prompt file {path} cannot be read: {error}") from error
    lines = data.decode("utf-8").splitlines()
    headings = [n for n, line in enumerate(lines) if line in (SYSTEM_HEADING, USER_HEADING)]
    if [lines[n] for n in headings] != [SYSTEM_HEADING, USER_HEADING] or headings[0] != 0:
        raise ConfigError(
            f"prompt file {path} must start with a line '{SYSTEM_HEADING}' and have one line "
            f"'{USER_HEADING}'"
        )
    return Prompt(
        purpose=purpose,
        system="\n".join(lines[1 : headings[1]]).strip(),
        user="\n".join(lines[headings[1] + 1 :]).strip(),
        sha256=hashlib.sha256(data).hexdigest()[:16],
    )
