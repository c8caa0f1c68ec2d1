"""What the schemas say about a key: its type."""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WORDS = {
    int: "int",
    float: "float",
    str: "str",
    bool: "bool",
    type(None): "null",
    dict: "map",
    Path: "str",
}

UNIONS = {
    "model.lora.target_modules": "str or list of str",
    "engine.devices": "list of int or null",
    "datamodule.corpus": "str, list of str or null",
    "evaluation.corpus": "str, list of str or null",
    "benchmark.path": "str, list of str or null",
}
"""Types that OmegaConf cannot say; the schemas leave these keys open."""


def type_of(schema: type | None, path: tuple[str, ...], value: Any) -> str:
    """The type of a key for a reader.

    Args:
        schema: Dataclass of the file; `None` if it has none.
        path: The key and the keys above it.
        value: Its value, which says it where the schema leaves it open.

    Example:
        >>> type_of(Rollout, ("max_in_flight",), None)
        'int or null'
    """
    annotation: Any = schema
    for name in path:
        if not dataclasses.is_dataclass(annotation):
            return _of_value(value)
        hints = typing.get_type_hints(annotation)
        if name not in hints:
            return _of_value(value)
        annotation = hints[name]
    return _words(annotation) or _of_value(value)


def type_of_argument(target: str, name: str) -> str:
    """The type of an argument of what a `_target_` names; empty if it does not say.

    Args:
        target: Dotted path of a class or function.
        name: The argument.
    """
    module, _, attribute = target.rpartition(".")
    built = getattr(importlib.import_module(module), attribute)
    call = vars(built).get("__init__") if isinstance(built, type) else built
    if call is None:
        return ""
    try:
        hints = typing.get_type_hints(call)
    except NameError:  # a name that the module imports for type checkers only
        return ""
    return _words(hints.get(name))


def is_map(schema: type | None, path: tuple[str, ...]) -> bool:
    """Whether a key holds a map whose keys are the user's, such as variables by name."""
    annotation: Any = schema
    for name in path:
        if not dataclasses.is_dataclass(annotation):
            return False
        annotation = typing.get_type_hints(annotation).get(name)
    return typing.get_origin(annotation) is dict and typing.get_args(annotation)[1] is str


def _words(annotation: Any) -> str:
    """Empty where anything is allowed."""
    if typing.get_origin(annotation) is typing.Literal:
        return "str"
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        words = list(map(_words, arguments))
        return " or ".join(dict.fromkeys(words)) if all(words) else ""
    if origin is list:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return "map"
    return ""


def _of_value(value: Any) -> str:
    if isinstance(value, list):
        kinds = sorted({_of_value(item) for item in value})
        return f"list of {kinds[0]}" if len(kinds) == 1 else "list"
    if isinstance(value, Mapping):
        return "map"
    return "any" if value is None else _WORDS[type(value)]
