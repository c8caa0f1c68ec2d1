"""The suite as a corpus folder: what `datamodule=shellworld` writes once and reads ever after."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from arise.tasks.shellworld.folder import write
from arise.tasks.shellworld.generate import generate_tasks


def write_corpus(folder: str | Path, *, split: str, count: int, seed: int, mix: str) -> Path:
    """Write generated tasks below `folder`, unless the same ones are already there.

    The folder's name holds a hash of the tasks' content, so a changed generator never meets a
    stale copy. It appears under its name only when complete, so two runs may start at once.

    Args:
        folder: Where corpora are kept.
        split: `"train"`, `"heldout"` or `"unseen"`.
        count: Number of tasks.
        seed: Seed of the tasks.
        mix: `"conjunctive"` or `"single"`.

    Returns:
        The corpus folder.

    Raises:
        ConfigError: Unknown split or mix, or a negative count.
    """
    specs = generate_tasks(split, count, seed, mix)
    # Not the needs: a set's order differs between processes.
    content = repr([(spec.id, spec.domain, spec.tags, spec.draft) for spec in specs])
    digest = hashlib.blake2b(content.encode(), digest_size=6).hexdigest()
    corpus = Path(folder) / f"{split}-{mix}-{seed}-{count}-{digest}"
    if corpus.is_dir():
        return corpus
    corpus.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=".writing-", dir=corpus.parent))
    try:
        for spec in specs:
            write(spec, hidden / spec.id)
        hidden.chmod(0o755)
        if not corpus.is_dir():
            hidden.rename(corpus)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return corpus
