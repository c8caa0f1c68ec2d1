"""Texts of single tokens, from the tokenizer that the run left."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from arise.runs.folder import RunFolder

log = logging.getLogger(__name__)


def token_texts(run: Path, token_ids: Collection[int]) -> dict[int, str]:
    """The text of each token, as it stands inside a sequence.

    Args:
        run: The run's folder.
        token_ids: The tokens.

    Returns:
        Nothing if the run left no tokenizer that can be read; the page then shows numbers.
    """
    folder = RunFolder(path=run)
    for path in (folder.tokenizer, folder.final_model):
        if (path / "tokenizer.json").is_file():
            return _decoded(path / "tokenizer.json", sorted(token_ids))
    return {}


def _decoded(path: Path, token_ids: list[int]) -> dict[int, str]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        log.warning("%s cannot be read, tokens are shown as numbers: %s", path, error)
        return {}
    anchor = token_ids[:1]
    # Decoders treat a sequence's first token in their own way (a leading space is dropped), so
    # each token is decoded behind another one.
    prefix = tokenizer.decode(anchor, skip_special_tokens=False)
    texts = {}
    for token in token_ids:
        text = tokenizer.decode([*anchor, token], skip_special_tokens=False)
        texts[token] = text[len(prefix) :] if text.startswith(prefix) else text
    return texts
