"""Where `rubrics.pool_path` points: a file, or one that an installed package ships."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

_PACKAGED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(.+)")


def pool_file(text: str) -> Path:
    """The path of a pool file.

    Args:
        text: A path, or `package:file` with the file's place inside an importable package.

    Returns:
        The path, whether or not there is such a file.

    Example:
        >>> pool_file("arise.tasks.shellworld:pools/recorded.jsonl").name
        'recorded.jsonl'
    """
    match = _PACKAGED.fullmatch(text)
    if match is not None and not Path(text).is_file():
        try:
            spec = find_spec(match[1])
        except ModuleNotFoundError:  # the package above it
            spec = None
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations))) / match[2]
    return Path(text)
