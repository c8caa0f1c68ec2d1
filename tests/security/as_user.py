"""Runs a function in a child process that gave up root for good."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

ORDINARY_UID = 64_321


def in_child(function: Callable[[], Any]) -> Any:
    """What `function` returns in a child process of an ordinary user.

    A fork, so that what the parent could read (its own packages in a private folder) is loaded.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(ORDINARY_UID)
                os.setuid(ORDINARY_UID)
            os.chdir("/")
            answer = pickle.dumps((True, function()))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    succeeded, result = pickle.loads(answer)
    assert succeeded, result
    return result
