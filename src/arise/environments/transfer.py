"""Files in and out of a sandbox as text of a shell command, while the agent's shell runs in it."""

from __future__ import annotations

import base64
import binascii
import secrets
import shlex
from collections.abc import Iterable

from arise.errors import SandboxError

_LINE_CHARACTERS = 2000


def unpacking(archive: bytes) -> bytes:
    """A command that unpacks a tar file at the root."""
    end = secrets.token_hex(8)
    text = base64.encodebytes(archive).decode()
    return (f"/usr/bin/base64 -d <<'{end}' | (cd / && /usr/bin/tar -xpf -)\n{text}{end}\n").encode()


def packing(path: str, mark: str, max_bytes: int) -> bytes:
    """A command that prints the tar file of an absolute path, each line marked with `mark`.

    A file or folder that is a link is packed as a link.
    """
    folder, _, name = path.rpartition("/")
    name = shlex.quote(name)
    return (
        f"(cd -- {shlex.quote(folder or '/')} && [[ -e {name} || -L {name} ]] && "
        f"/usr/bin/tar -cf - -- {name} 2>/dev/null | /usr/bin/head -c {max_bytes} | "
        f"/usr/bin/base64 -w {_LINE_CHARACTERS} | /usr/bin/sed s/^/{mark}/)"
    ).encode()


def marked_lines(output: str, mark: str) -> list[str]:
    """The lines that `packing` printed, among those of other processes."""
    return [line[len(mark) :] for line in output.splitlines() if line.startswith(mark)]


def decoded(lines: Iterable[str]) -> bytes:
    """The archive in the lines.

    Raises:
        SandboxError: They are broken: another process wrote into the middle of one.
    """
    try:
        return base64.b64decode("".join(lines), validate=True)
    except binascii.Error as error:
        raise SandboxError(f"the files came out of the sandbox broken: {error}") from error
