"""What this process writes to the terminal: its sentences, and its log."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TextIO


class _TerminalHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever the standard error is at that moment: a live display replaces it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The standard error now."""
        return sys.stderr


def set_up_logging(*, quiet: bool) -> None:
    """Our own messages on the terminal; of the libraries, errors only."""
    from transformers.utils import logging as transformers_logging

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", handlers=[_TerminalHandler()])
    logging.getLogger("arise").setLevel(logging.WARNING if quiet else logging.INFO)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    # Lightning sets its own level when it is imported.
    import lightning  # noqa: F401

    for noisy in ("lightning.pytorch", "lightning.fabric", "httpx"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
