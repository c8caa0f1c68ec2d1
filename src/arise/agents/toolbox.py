"""The tools of `harness=tools`: what the model is told about them, and what they do.

Every tool is a command in the sandbox's own shell, so it has the agent's rights, working directory
and limits, and works on files of any size.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arise.environments.base import Environment, ExecResult

_TEXT = {"type": "string"}
_STATES = ("pending", "in_progress", "completed", "cancelled")


def _tool(name: str, description: str, required: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required.split()}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "bash",
        "Run a command in bash. Working directory and exported variables stay between calls.",
        "command",
        command={**_TEXT, "description": "The command."},
        timeout={"type": "number", "description": "Seconds after which it is stopped."},
    ),
    _tool(
        "read",
        "Show a text file with line numbers.",
        "path",
        path=_TEXT,
        offset={"type": "integer", "description": "First line, from 1."},
        limit={"type": "integer", "description": "Number of lines; 2000 if left out."},
    ),
    _tool(
        "write",
        "Write a file; folders are made, and what was there before is replaced.",
        "path content",
        path=_TEXT,
        content=_TEXT,
    ),
    _tool(
        "edit",
        "Replace text in a file. The old text must occur exactly once, unless replace_all is true.",
        "path old new",
        path=_TEXT,
        old={**_TEXT, "description": "Text to replace, exactly as in the file."},
        new={**_TEXT, "description": "Text to put in its place."},
        replace_all={"type": "boolean"},
    ),
    _tool(
        "todowrite",
        "Keep a list of what is to be done; each call replaces the list.",
        "todos",
        todos={
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"content": _TEXT, "status": {"type": "string", "enum": [*_STATES]}},
                "required": ["content", "status"],
            },
        },
    ),
)
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_READ_LINES = 2000

# Bytes as they are: a file in another encoding must come out as it went in. The last newlines of
# a file survive because a mark is read behind them.
_EDIT = r"""(
LC_ALL=C
[[ -f $path ]] || { printf 'error: there is no file %s\n' "$path"; exit 1; }
text=$(cat -- "$path" && printf x) || exit 1
text=${text%x}
(( ${#text} == $(wc -c <"$path") )) || { echo 'error: the file is binary'; exit 1; }
rest=${text//"$old"/}
count=$(( (${#text} - ${#rest}) / ${#old} ))
(( count > 0 )) || { echo 'error: the old text does not occur in the file'; exit 1; }
(( count == 1 )) || [[ $all ]] || {
  echo "error: the old text occurs $count times; give more of it, or set replace_all"; exit 1; }
printf %s "${text//"$old"/"$new"}" >"$path" && echo "replaced $count"
)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave.

    Attributes:
        text: For the model.
        result: Of the command behind it; `None` if none ran.
        is_error: Whether the call could not be run at all.
    """

    text: str
    result: ExecResult | None = None
    is_error: bool = False


def check_arguments(name: str, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with a call, in words for the model; `None` if nothing."""
    schema = SCHEMAS.get(name)
    if schema is None:
        return f"there is no tool {name!r}; the tools are {', '.join(SCHEMAS)}"
    properties = schema["properties"]
    for key in schema["required"]:
        if key not in arguments:
            return f"{name}: the argument {key!r} is missing"
    for key, value in arguments.items():
        if key not in properties:
            return f"{name}: there is no argument {key!r}; it takes {', '.join(properties)}"
        problem = _wrong_type(value, properties[key])
        if problem is not None:
            return f"{name}: the argument {key!r} {problem}"
    if name == "edit" and not arguments["old"]:
        return "edit: the argument 'old' is empty; use write to make a file"
    return None


def _wrong_type(value: Any, schema: Mapping[str, Any]) -> str | None:
    kind = schema["type"]
    is_of_type = type(value) in _TYPES[kind]  # exactly: True is no number
    if not is_of_type:
        return f"must be of type {kind}, got {json.dumps(value)[:100]}"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {', '.join(schema['enum'])}, got {value!r}"
    if kind == "array":
        for item in list(value):
            problem = _wrong_type(item, schema["items"])
            if problem is not None:
                return f"has an entry that {problem}"
    if kind == "object":
        for key in schema["required"]:
            if key not in value:
                return f"lacks {key!r}"
        for key, entry in schema["properties"].items():
            problem = _wrong_type(value[key], entry) if key in value else None
            if problem is not None:
                return f"has a {key!r} that {problem}"
    return None


class Toolbox:
    """Runs the calls of one episode.

    Args:
        environment: The episode's sandbox.
        command_timeout_s: Limit on one command, and the most that a call may ask for, in seconds.
    """

    def __init__(self, environment: Environment, *, command_timeout_s: float) -> None:
        self._environment = environment
        self._command_timeout_s = command_timeout_s

    async def run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run one call; a wrong one is answered with what is wrong."""
        problem = check_arguments(name, arguments)
        if problem is not None:
            return ToolResult(text=f"error: {problem}", is_error=True)
        if name == "todowrite":
            return ToolResult(text=_todo_list(arguments["todos"]))
        timeout_s = min(
            arguments.get("timeout") or self._command_timeout_s, self._command_timeout_s
        )
        command = _COMMANDS[name](arguments)
        result = await self._environment.exec(command, timeout_s=max(timeout_s, 0.1))
        return ToolResult(text=result.output, result=result)


def _todo_list(todos: list[Mapping[str, Any]]) -> str:
    left = sum(todo["status"] in ("pending", "in_progress") for todo in todos)
    return f"{left} of {len(todos)} to do"


def _read(arguments: Mapping[str, Any]) -> str:
    first = max(1, arguments.get("offset") or 1)
    count = max(1, arguments.get("limit") or _READ_LINES)
    path = shlex.quote(arguments["path"])
    # Without a check `tail` would print an error and the pipe succeed.
    return (
        f"( test -r {path} || {{ printf 'error: cannot read %s\\n' {path}; exit 1; }}; "
        f"tail -n +{first} -- {path} | head -n {count} | nl -b a -w 5 -v {first} )"
    )


def _write(arguments: Mapping[str, Any]) -> str:
    path, content = shlex.quote(arguments["path"]), shlex.quote(arguments["content"])
    return f'( mkdir -p -- "$(dirname -- {path})" && printf %s {content} >{path} && echo written )'


def _edit(arguments: Mapping[str, Any]) -> str:
    values = {
        "path": arguments["path"],
        "old": arguments["old"],
        "new": arguments["new"],
        "all": "1" if arguments.get("replace_all") else "",
    }
    settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in values.items())
    return _EDIT.replace("(\n", f"(\n{settings}\n", 1)


_COMMANDS = {
    "bash": lambda arguments: arguments["command"],
    "read": _read,
    "write": _write,
    "edit": _edit,
}
