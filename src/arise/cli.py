"""The command line's error boundary: a user's mistake is one clear message and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from arise.config import register_schemas
from arise.errors import AriseError, ConfigError

EXIT_USAGE = 2
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130


def run(main: Callable[[], Any]) -> None:
    """Call a Hydra main function and exit with a code that says how it went.

    0: done. 1: the run failed, with one sentence. 2: a mistake in the configuration.
    130: interrupted. A traceback appears only for faults nobody foresaw.
    """
    # With full errors Hydra raises instead of printing and exiting with 1 by itself.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    register_schemas()
    try:
        main()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        _say(_explain(error))
        sys.exit(EXIT_USAGE)
    except AriseError as error:
        _say(f"{type(error).__name__}: {error}")
        sys.exit(EXIT_FAILURE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _say(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)


def _explain(error: BaseException) -> str:
    """Hydra's message, with its cause where that says more, and the quoting that values need.

    A `ConfigError` from a constructor that Hydra called says it all.
    """
    inner = error.__cause__
    while inner is not None:
        if isinstance(inner, ConfigError):
            return str(inner)
        inner = inner.__cause__
    parts = [str(error).strip()]
    cause = error.__cause__
    if cause is not None and str(cause).strip() not in parts[0]:
        parts.append(str(cause).strip())
    text = "\n".join(part for part in parts if part)
    if isinstance(error, OverrideParseException):
        text += (
            "\nA value with '=', ',', '#', spaces or letters outside ASCII needs quotes twice: "
            "'key=\"value\"'"
        )
    return text
