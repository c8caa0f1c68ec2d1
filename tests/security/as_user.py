"""An object in a child process that gave up root for good."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

ORDINARY_UID = 64_321


class UserProcess:
    """Makes an object as an ordinary user, and calls its methods.

    A fork, so that what the parent could read (its own packages in a private folder) is loaded.

    Args:
        make: Makes the object, in the child.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._ours.close()
            # Not `exit`: nothing of the parent's clean-up may run here.
            with contextlib.suppress(BaseException):
                _serve(make, theirs)
            os._exit(0)
        theirs.close()

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """What a method of the object returns."""
        self._ours.send((method, args, options))
        succeeded, result = self._ours.recv()
        assert succeeded, result
        return result

    def close(self) -> None:
        """End the child."""
        self._ours.close()
        os.waitpid(self.pid, 0)


def _serve(make: Callable[[], Any], pipe: Connection) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(ORDINARY_UID)
        os.setuid(ORDINARY_UID)
    os.chdir("/")
    made: Any = None
    while True:
        try:
            method, args, options = pipe.recv()
        except EOFError:
            return
        try:
            made = make() if made is None else made
            pipe.send((True, getattr(made, method)(*args, **options)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
