"""Task files as tar archives in memory: nothing is ever staged under a path of the host."""

from __future__ import annotations

import io
import stat
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

from arise.environments.dockerfile import CopiedFile
from arise.errors import SandboxError

# Any fixed date will do: listings must not differ between checkouts, and zip refuses 1970.
_MTIME_S = 1_735_689_600


def archive(files: Iterable[CopiedFile]) -> bytes:
    """Pack `files`, with times and owners that do not depend on the host.

    Symbolic links are stored as links and never followed, except where one is named itself.

    Raises:
        SandboxError: A file cannot be read, or is a device, socket or FIFO.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in files:
            try:
                _add(tar, file)
            except OSError as error:
                raise SandboxError(f"cannot stage {file.source}: {error}") from error
    return buffer.getvalue()


def archive_folder(folder: Path) -> bytes:
    """Pack everything under `folder` with names relative to it.

    Raises:
        SandboxError: `folder` is missing, or holds something that cannot be packed.
    """
    if not folder.is_dir():
        raise SandboxError(f"no such folder: {folder}")
    paths = sorted(folder.rglob("*"))
    return archive(CopiedFile(target=str(path.relative_to(folder)), source=path) for path in paths)


def _add(tar: tarfile.TarFile, file: CopiedFile) -> None:
    entry = tarfile.TarInfo(file.target.strip("/") or ".")
    entry.mtime, entry.mode = _MTIME_S, file.mode or 0o755
    if file.source is None:
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
        return
    status = file.source.lstat()
    entry.mode = stat.S_IMODE(status.st_mode) if file.mode is None else file.mode
    # The sandbox has one user, who must be able to use what root owned.
    entry.mode |= 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(file.source.readlink())
        tar.addfile(entry)
    elif stat.S_ISREG(status.st_mode):
        data = file.source.read_bytes()
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    else:
        raise SandboxError(f"cannot stage {file.source}: not a file, folder or link")


class ArchiveCache:
    """Archives by key, the least recently used dropped above `max_bytes`; thread-safe."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._archives: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, build: Callable[[], bytes]) -> bytes:
        """The archive of `key`, made by `build` if it is not held."""
        with self._lock:
            if key not in self._archives:
                self._archives[key] = build()
            self._archives.move_to_end(key)
            found = self._archives[key]
            while len(self._archives) > 1 and self._num_bytes() > self._max_bytes:
                self._archives.popitem(last=False)
            return found

    def clear(self) -> None:
        """Forget all archives."""
        with self._lock:
            self._archives.clear()

    def _num_bytes(self) -> int:
        return sum(map(len, self._archives.values()))
