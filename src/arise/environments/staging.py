"""Task files as tar archives in memory: nothing is ever staged under a path of the host."""

from __future__ import annotations

import io
import posixpath
import stat
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import IO

from arise.environments.dockerfile import CopiedFile
from arise.errors import SandboxError

# Any fixed date will do: listings must not differ between checkouts, and zip refuses 1970.
_MTIME_S = 1_735_689_600


def archive(files: Iterable[CopiedFile], *, replaced: Iterable[str] = ()) -> bytes:
    """Pack `files`, with times and owners that do not depend on the host.

    Symbolic links are stored as links and never followed, except where one is named itself.

    Args:
        files: What to pack.
        replaced: Folders that shall be empty first, whatever was in their place. A file of that
            name comes before the folder, and what unpacks it (Docker) removes what was there.

    Raises:
        SandboxError: A file cannot be read, or is a device, socket or FIFO.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in replaced:
            # The folder above first: an agent may have made a link to elsewhere of it.
            if "/" in name.strip("/"):
                _add(tar, CopiedFile(target=posixpath.dirname(name)))
            entry = tarfile.TarInfo(name.strip("/"))
            entry.mtime = _MTIME_S
            tar.addfile(entry)
            _add(tar, CopiedFile(target=name))
        for file in files:
            try:
                _add(tar, file)
            except OSError as error:
                raise SandboxError(f"cannot stage {file.source}: {error}") from error
    return buffer.getvalue()


def entry(name: str, *, link: str = "") -> bytes:
    """An archive of one empty file, or one symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = 0o644, _MTIME_S
        if link:
            info.type, info.linkname = tarfile.SYMTYPE, link
        tar.addfile(info)
    return buffer.getvalue()


def archive_layers(
    sources: Iterable[Path],
    *,
    prefix: str = "",
    folders: Iterable[CopiedFile] = (),
    replaced: Iterable[str] = (),
) -> bytes:
    """Pack the content of several folders, and single files, into one folder; later ones win.

    Args:
        sources: Folders and files.
        prefix: Name of the folder in the archive; empty for its top.
        folders: Entries that come first.
        replaced: As in `archive`.

    Raises:
        SandboxError: A source is missing, or holds something that cannot be packed.
    """
    files: dict[str, CopiedFile] = {}
    for source in sources:
        if source.is_dir():
            paths = {path: path.relative_to(source).as_posix() for path in source.rglob("*")}
        elif source.is_file():
            paths = {source: source.name}
        else:
            raise SandboxError(f"no such folder: {source}")
        for path, name in paths.items():
            target = f"{prefix}/{name}" if prefix else name
            files[target] = CopiedFile(target=target, source=path)
    return archive([*folders, *(files[name] for name in sorted(files))], replaced=replaced)


def write_context(target: IO[bytes], context: Path, files: Iterable[Path]) -> None:
    """Write a build context as a tar file; owners and times do not depend on the host.

    Raises:
        SandboxError: A file cannot be read, or is a device, socket or FIFO.
    """
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in files:
            try:
                _add(tar, CopiedFile(target=path.relative_to(context).as_posix(), source=path))
            except OSError as error:
                raise SandboxError(f"cannot stage {path}: {error}") from error


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
