"""Puts back what an agent could have planted for the tests to run, while nothing runs.

In a container the agent is often root, and the tests use the same files. Before they run, the
container is stopped, and by Docker alone (no program of the container is used)

- programs, libraries they are loaded with, and Python's own modules that the image had and that
  are changed or gone are put back from the image;
- a program that hides one of the image by its place on the PATH becomes a link to it;
- files that a loader, Python or pytest reads by itself (`/etc/ld.so.preload`, `sitecustomize.py`,
  `/conftest.py`, `/pytest.ini`, ...) become the image's again, or empty.

Whatever else the agent installed or wrote stays, because tests have to see it.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Iterable, Iterator

from arise.environments.docker.container import IS_FOLDER, Container
from arise.environments.staging import entry

_PROGRAM_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
_MODIFIED, _ADDED, _DELETED = 0, 1, 2
_LIBRARY = re.compile(r"^/(usr/(local/)?)?lib(32|64|x32)?/(.*/)?[^/]*\.so(\.[0-9.]+)?$")
_PYTHON = re.compile(r"^/(usr|usr/local|opt/[^/]+)/lib/python3[^/]*/(?!.*(site|dist)-packages/)")
_AUTOMATIC = re.compile(
    r"^(/etc/ld\.so\.preload|/.*/(sitecustomize|usercustomize)\.py|"
    r"/(conftest\.py|\.?pytest\.ini|pyproject\.toml|tox\.ini|setup\.cfg))$"
)
_OWN_PROGRAM = "docker-init"


async def repair(container: Container, template: Container) -> None:
    """Put back what the tests rely on.

    Args:
        container: The agent's, not running.
        template: A container of the same image that never ran.

    Raises:
        SandboxError: Docker failed.
    """
    changes = dict(await container.changes())
    for folder in await _replaced_folders(container, template, changes):
        await _restore(container, template, folder)
        changes = {path: kind for path, kind in changes.items() if not _is_below(path, folder)}
    for path, kind in sorted(changes.items()):
        if posixpath.basename(path) == _OWN_PROGRAM:
            continue
        if kind == _ADDED:
            await _neutralise(container, template, path)
        elif _is_guarded(path):
            await _restore(container, template, path)


async def _replaced_folders(
    container: Container, template: Container, changes: dict[str, int]
) -> list[str]:
    """Changed folders of programs, or above, that are gone or something else now."""
    suspects = sorted(set(_guarded_folders()) & changes.keys())
    kinds = await asyncio.gather(
        *(where.kind(path) for path in suspects for where in (template, container))
    )
    found: list[str] = []
    for path, before, now in zip(suspects, kinds[::2], kinds[1::2], strict=True):
        is_inside = any(_is_below(path, folder) for folder in found)
        if not is_inside and before is not None and before != now:
            found.append(path)
    return found


async def _neutralise(container: Container, template: Container, path: str) -> None:
    """Make an added file harmless if it is one of those that act by being there."""
    if _AUTOMATIC.match(path):
        await container.put(posixpath.dirname(path), entry(posixpath.basename(path)))
    elif posixpath.dirname(path) in _PROGRAM_FOLDERS:
        name = posixpath.basename(path)
        for folder in _PROGRAM_FOLDERS:
            hidden = posixpath.join(folder, name)
            if hidden != path and await template.kind(hidden) is not None:
                await container.put(posixpath.dirname(path), entry(name, link=hidden))
                return


async def _restore(container: Container, template: Container, path: str) -> None:
    """Put the image's file or folder back in place of whatever is there."""
    found = await template.get(path)
    if found is None:
        return
    stream, status = found
    parent = posixpath.dirname(path)
    if not int(status["mode"]) & IS_FOLDER:
        # A folder in a file's place is removed by Docker; a link above was put right before.
        await container.put(parent, stream)
        return
    await container.put(parent, entry(posixpath.basename(path)))
    await container.put(parent, stream)


def _is_guarded(path: str) -> bool:
    return (
        posixpath.dirname(path) in _PROGRAM_FOLDERS
        or _LIBRARY.match(path) is not None
        or _PYTHON.match(path) is not None
        or _AUTOMATIC.match(path) is not None
    )


def _guarded_folders() -> Iterator[str]:
    yield from ("/usr", "/usr/local", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc")
    yield from _PROGRAM_FOLDERS


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def artifact_roots(workdir: str, artifacts: Iterable[str]) -> list[str]:
    """Paths that a separate grading container gets from the agent's, none inside of another.

    Args:
        workdir: The task's working directory; the whole file system is not taken.
        artifacts: Further absolute paths that the task names.
    """
    wanted = {posixpath.normpath(path) for path in ("/logs/artifacts", workdir, *artifacts)}
    roots = sorted(path for path in wanted if path.startswith("/") and path != "/")
    return [
        path
        for path in roots
        if not any(path != other and _is_below(path, other) for other in roots)
    ]
