"""One process at a time writes into a run's folder."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import IO

from arise.errors import ConfigError

log = logging.getLogger(__name__)

_FILE = "lock"


class RunLock:
    """A lock on a run's folder that the system releases when this process dies, however it dies.

    Args:
        run: The run's folder.

    Raises:
        ConfigError: A living process has it; the message names it.

    Example:
        >>> lock = RunLock(run)
        >>> is_locked(run)
        True
        >>> lock.release()
    """

    def __init__(self, run: Path) -> None:
        # Opened for appending: whoever does not get the lock must not erase the owner's name.
        self._file: IO[str] = (run / _FILE).open("a+", encoding="utf-8")
        # A reader that asks `is_locked` holds it for an instant.
        for pause_s in (0.05, 0.1, 0.2, None):
            if _try_lock(self._file, fcntl.LOCK_EX):
                break
            if pause_s is not None:
                time.sleep(pause_s)
        else:
            self._file.seek(0)
            owner = self._file.read().strip() or "another process"
            self._file.close()
            raise ConfigError(
                f"ckpt_path: run folder {str(run)!r} is in use by {owner}: wait for it or stop it"
            )
        self._file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        self._file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
        self._file.flush()

    def release(self) -> None:
        """Let others in; safe to repeat."""
        self._file.close()


def is_locked(run: Path) -> bool:
    """Whether a living process works in the run's folder."""
    try:
        file = (run / _FILE).open(encoding="utf-8")
    except OSError:
        return False
    with file:
        return not _try_lock(file, fcntl.LOCK_SH)


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        log.warning(
            "%s cannot be locked on this file system (%s): see to it that no second process "
            "goes on in the same run",
            file.name,
            error.strerror,
        )
    return True
