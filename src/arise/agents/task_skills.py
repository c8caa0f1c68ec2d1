"""A benchmark's own skills as the agent is told of them; not the skills that training evolves."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

import yaml

PLACE = "/skills"


def describe_task_skills(folder: Path | None) -> str:
    """`<available_skills>`: name, description and place of each skill; empty if there are none.

    A skill is a folder with a `SKILL.md` whose front matter has `name` and `description`; others
    are left out.

    Args:
        folder: The task's folder of skills, which stands at `/skills` in the sandbox.
    """
    if folder is None or not folder.is_dir():
        return ""
    entries = []
    for file in sorted(folder.glob("*/SKILL.md")):
        front = _front_matter(file.read_text(encoding="utf-8", errors="replace"))
        if front is None:
            continue
        name, description = front
        location = f"{PLACE}/{file.parent.name}/SKILL.md"
        entries.append(
            f"  <skill>\n    <name>{escape(name)}</name>\n"
            f"    <description>{escape(description)}</description>\n"
            f"    <location>{escape(location)}</location>\n  </skill>\n"
        )
    return f"<available_skills>\n{''.join(entries)}</available_skills>" if entries else ""


def _front_matter(text: str) -> tuple[str, str] | None:
    if not text.startswith("---\n"):
        return None
    try:
        front = yaml.safe_load(text[4:].partition("\n---")[0])
    except yaml.YAMLError:
        return None
    if not isinstance(front, dict) or not front.get("name") or not front.get("description"):
        return None
    return str(front["name"]), str(front["description"])
