"""A trainer that is killed in the moment a sandbox begins."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import psutil

from arise.environments.machine import HOST_NAME, Bubblewrap
from integration.sandboxes import factory_of

Process = subprocess.Popen[bytes]
COMMON = ("--unshare-user", "--unshare-all", "--die-with-parent", "--as-pid-1")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begin(program: Bubblewrap, *options: str, keep: tuple[int, ...] = ()) -> Process:
    command = [program.path, *COMMON, "--hostname", HOST_NAME, *options]
    return subprocess.Popen([*command, "--ro-bind", "/", "/", "--", "sleep", "100"], pass_fds=keep)


def first_process(sandbox: Process) -> psutil.Process:
    monitor = psutil.Process(sandbox.pid)
    until(lambda: bool(monitor.children()))
    return monitor.children()[0]


def test_the_next_start_removes_what_is_left_and_no_sandbox_that_runs() -> None:
    """The descriptor keeps bubblewrap in that moment: users are not mapped before it is read."""
    program = Bubblewrap.find()
    readable, writable = os.pipe()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    running = begin(program)
    blocked = ("--userns-block-fd", str(readable), "--info-fd", str(nowhere))
    beginning = begin(program, *blocked, keep=(readable, nowhere))
    try:
        inner, orphan = first_process(running), first_process(beginning)
        until(lambda: inner.name() == "sleep")
        beginning.kill()
        beginning.wait()
        assert orphan.is_running()
        factory = factory_of("bubblewrap")
        factory.check()
        factory.close()
        until(lambda: not orphan.is_running())
        assert running.poll() is None
        assert inner.is_running()
    finally:
        for sandbox in (running, beginning):
            sandbox.kill()
            sandbox.wait()
        for descriptor in (readable, writable, nowhere):
            os.close(descriptor)
