"""Data blocks of the report: compressed JSON that the page unpacks when it needs it.

A block is the text of a `<script>` element that no browser runs. Base64 has no `<`, so nothing in
the data, whoever wrote it, can end the element.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from arise.llm.text import clean_text


def pack(data: Any) -> str:
    """JSON, gzipped, as base64; the same data gives the same text.

    Raises:
        ValueError: A number is not finite: JSON has none such.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    packed = gzip.compress(clean_text(text).encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def unpack(text: str) -> Any:
    """What `pack` was given."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def element(name: str, data: Any) -> str:
    """The HTML element of a block; the page finds it as `data-<name>`."""
    return f'<script type="application/gzip" id="data-{name}">{pack(data)}</script>\n'
