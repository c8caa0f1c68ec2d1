"""Copies files out of a sandbox: an archive that an agent wrote is opened here and nowhere else."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from arise.errors import SandboxError


def unpack(archive: IO[bytes], target: Path, *, max_bytes: int) -> None:
    """Unpack a tar file that an agent may have made into the new folder `target`.

    Nothing outside of `target` is written or read: links that point out of it, absolute names,
    devices and FIFOs are left out, and links that stay are never followed. Everything can be read
    and removed by this user.

    Args:
        archive: The tar file.
        target: A folder that does not exist yet.
        max_bytes: Most bytes of all files together.

    Raises:
        SandboxError: `target` exists, the archive is broken, or it holds more than `max_bytes`.
    """
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise SandboxError(f"{target} exists already") from None
    try:
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            _unpack(tar, target, max_bytes)
    except tarfile.TarError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise SandboxError(f"the sandbox sent a broken archive: {error}") from error
    except SandboxError:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _unpack(tar: tarfile.TarFile, target: Path, max_bytes: int) -> None:
    total = 0
    for member in tar:
        total += member.size
        if total > max_bytes:
            raise SandboxError(f"the files to copy out are larger than {max_bytes} bytes")
        try:
            safe = tarfile.data_filter(member, str(target))
        except tarfile.FilterError:
            continue
        if safe is None or not (safe.isreg() or safe.isdir() or safe.issym() or safe.islnk()):
            continue
        if _goes_through_a_link(target, safe.name):
            continue
        if safe.islnk() and (
            _goes_through_a_link(target, safe.linkname) or not (target / safe.linkname).is_file()
        ):
            continue
        if safe.isreg():
            safe = safe.replace(mode=(safe.mode or 0) | 0o600)
        tar.extract(safe, target, filter=_as_it_is)


def _goes_through_a_link(target: Path, name: str) -> bool:
    """Whether a parent of the entry is a link, or the entry would follow one that is there."""
    path = target
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            return True
    return False


_as_it_is: Callable[[tarfile.TarInfo, str], tarfile.TarInfo] = lambda member, _: member  # noqa: E731
