"""The part of a Dockerfile that can be had without Docker: files, folders and variables.

`FROM` is ignored (the sandbox shows the host's userland), `COPY`, `ADD`, `WORKDIR`, `ENV`, `ARG`
and `VOLUME` are interpreted, and what only matters to a container engine is skipped. Everything
else, above all `RUN`, makes the task need Docker: it is refused, never half done.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from arise.types import EnvironmentSpec

DEFAULT_WORKDIR = "/app"
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_IGNORED = frozenset({"LABEL", "MAINTAINER", "EXPOSE", "CMD", "STOPSIGNAL"})
_READ_ONLY = "usr bin sbin lib lib32 lib64 libx32 etc dev proc sys run tests logs".split()
_ARCHIVE = re.compile(r"\.(tar|tar\.\w+|tgz|tbz2?|txz)$")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[^'\"\\]+", re.DOTALL)
_VARIABLE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")


class NeedsDockerError(Exception):
    """The build asks for something that only a container engine can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFile:
    """One file, folder or symbolic link to create.

    Attributes:
        target: Absolute path in the sandbox.
        source: Path on the host; `None` for an empty folder.
        mode: Permission bits to use instead of the source's.
    """

    target: str
    source: Path | None = None
    mode: int | None = None


@dataclass(slots=True, kw_only=True)
class BuildPlan:
    """What a context amounts to.

    Attributes:
        workdir: Folder in which commands start.
        env: Variables of every command.
        files: What to create, in order; later entries win.
    """

    workdir: str = DEFAULT_WORKDIR
    env: dict[str, str] = field(default_factory=dict)
    files: list[CopiedFile] = field(default_factory=list)


def plan_environment(spec: EnvironmentSpec) -> BuildPlan:
    """Interpret the task's build context.

    Raises:
        NeedsDockerError: It cannot be had in bubblewrap.
    """
    if spec.gpus > 0:
        raise NeedsDockerError(f"gpus = {spec.gpus}")
    if spec.network or spec.tests_network:
        raise NeedsDockerError("network access")
    if spec.user not in (None, "root", "0"):
        raise NeedsDockerError(f"the user {spec.user}")
    context = spec.context
    if context is not None and compose_file(context) is not None:
        raise NeedsDockerError("docker-compose")
    has_dockerfile = context is not None and (context / spec.dockerfile).is_file()
    if spec.docker_image and not has_dockerfile:
        raise NeedsDockerError(f"the image {spec.docker_image}")
    if context is not None and spec.exclude and not has_dockerfile:
        raise NeedsDockerError("a build context without a Dockerfile")
    plan = plan_build(
        context, spec.workdir, dockerfile=spec.dockerfile, exclude=frozenset(spec.exclude)
    )
    if spec.skills is not None:
        plan.files.append(CopiedFile(target="/skills"))
        _copy_tree(plan, spec.skills, "/skills", None)
    elif spec.skills_dir and spec.skills_dir != "/skills":
        folder = posixpath.normpath(spec.skills_dir)
        plan.files += [
            replace(file, target="/skills" + file.target.removeprefix(folder))
            for file in plan.files
            if file.target == folder or file.target.startswith(f"{folder}/")
        ]
    return plan


def compose_file(context: Path) -> str | None:
    """Name of the docker-compose file in a build context; `None` if there is none."""
    return next((name for name in _COMPOSE if (context / name).is_file()), None)


def plan_build(
    context: Path | None,
    workdir: str | None,
    *,
    dockerfile: str = "Dockerfile",
    exclude: frozenset[str] = frozenset(),
) -> BuildPlan:
    """Interpret a build context.

    Without a Dockerfile, all files of the context are copied to the working directory.

    Args:
        context: The `environment/` folder; `None` for an empty sandbox.
        workdir: The task's own working directory, which wins over `WORKDIR`.
        dockerfile: Name of the Dockerfile in the context.
        exclude: Entries of the context that are no part of it.

    Raises:
        NeedsDockerError: The context cannot be had without Docker; the message says what.
    """
    if context is not None and (context / dockerfile).is_file():
        plan = _Builder(context, exclude).run((context / dockerfile).read_text("utf-8"))
    else:
        plan = BuildPlan(workdir=workdir or DEFAULT_WORKDIR)
        if context is not None and context.is_dir():
            _copy_tree(plan, context, plan.workdir, None)
    plan.workdir = _writable(posixpath.join(plan.workdir, workdir or ""))
    plan.files.append(CopiedFile(target=plan.workdir))
    return plan


def instructions(text: str) -> list[tuple[str, str]]:
    r"""Split a Dockerfile into (KEYWORD, rest), joining lines that end in a backslash.

    Example:
        >>> instructions("# c\nENV A=1 \\\n  B=2")
        [('ENV', 'A=1   B=2')]
    """
    result: list[tuple[str, str]] = []
    pending = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.endswith("\\"):
            pending += line.rstrip()[:-1]
            continue
        keyword, _, rest = (pending + line).strip().partition(" ")
        result.append((keyword.upper(), rest.strip()))
        pending = ""
    if pending.strip():
        keyword, _, rest = pending.strip().partition(" ")
        result.append((keyword.upper(), rest.strip()))
    return result


class _Builder:
    """Runs the instructions of one Dockerfile into a `BuildPlan`."""

    def __init__(self, context: Path, exclude: frozenset[str]) -> None:
        self._exclude = exclude
        if (context / ".dockerignore").is_file():
            raise NeedsDockerError("a .dockerignore file")
        self._context = context.resolve()
        self._plan = BuildPlan(workdir="/")
        self._arguments: dict[str, str] = {}
        self._folders = {"/", "/tmp", "/root", "/home", "/opt", "/srv", "/mnt", "/media", "/var"}
        self._num_stages = 0

    def run(self, text: str) -> BuildPlan:
        for keyword, rest in instructions(text):
            handler = getattr(self, f"_do_{keyword.lower()}", None)
            if handler is not None and rest:
                handler(rest)
            elif keyword not in _IGNORED:
                raise NeedsDockerError(f"the Dockerfile instruction {keyword} {rest}".strip()[:120])
        if self._plan.workdir == "/":
            self._plan.workdir = DEFAULT_WORKDIR if DEFAULT_WORKDIR in self._folders else "/"
        return self._plan

    def _do_from(self, rest: str) -> None:
        self._num_stages += 1
        if self._num_stages > 1:
            raise NeedsDockerError("a Dockerfile with several stages")

    def _do_user(self, rest: str) -> None:
        if rest.split(":")[0] not in ("root", "0"):
            raise NeedsDockerError(f"the Dockerfile instruction USER {rest}")

    def _do_healthcheck(self, rest: str) -> None:
        if rest.upper() != "NONE":
            raise NeedsDockerError("the Dockerfile instruction HEALTHCHECK")

    def _do_arg(self, rest: str) -> None:
        for word in self._words(rest):
            name, _, value = word.partition("=")
            self._arguments.setdefault(name, value)

    def _do_env(self, rest: str) -> None:
        if "=" in rest.split(maxsplit=1)[0]:
            for word in self._words(rest):
                name, _, value = word.partition("=")
                self._plan.env[name] = value
        else:
            name, _, value = rest.partition(" ")
            self._plan.env[name] = self._expand(value.strip())

    def _do_workdir(self, rest: str) -> None:
        self._plan.workdir = self._folder(self._words(rest)[0])

    def _do_volume(self, rest: str) -> None:
        for word in self._list(rest):
            self._folder(word)

    def _do_add(self, rest: str) -> None:
        if any("://" in word or _ARCHIVE.search(word) for word in self._list(rest)):
            raise NeedsDockerError(f"the Dockerfile instruction ADD {rest}")
        self._do_copy(rest)

    def _do_copy(self, rest: str) -> None:
        mode: int | None = None
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            name, _, value = flag.partition("=")
            if name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
                mode = int(value, 8)
            elif name not in ("--chown", "--link"):
                raise NeedsDockerError(f"COPY {flag}")
            rest = rest.strip()
        words = self._list(rest)
        if len(words) < 2 or rest.startswith("<<"):
            raise NeedsDockerError(f"COPY {rest}")
        sources = [path for word in words[:-1] for path in self._sources(word)]
        target = _writable(posixpath.join(self._plan.workdir, words[-1]))
        into = words[-1].endswith(("/", "/.")) or words[-1] == "." or target in self._folders
        for source in sources:
            if source.is_dir():
                self._add_folder(target)
                _copy_tree(self._plan, source, target, mode)
            elif into or len(sources) > 1:
                self._add_folder(target)
                path = _writable(posixpath.join(target, source.name))
                self._add_file(path, source, mode)
            else:
                self._add_file(target, source, mode)

    def _sources(self, word: str) -> list[Path]:
        """The context's paths that `word` names; links are followed, but never out of it."""
        pattern = posixpath.normpath(word.lstrip("/") or ".")
        if pattern.startswith(".."):
            raise NeedsDockerError(f"COPY {word}: outside the build context")
        found = [self._context] if pattern == "." else sorted(self._context.glob(pattern))
        if self._exclude and pattern == ".":
            raise NeedsDockerError(f"COPY {word}: the context also holds tests or solution")
        tops = {path.relative_to(self._context).parts[:1] for path in found}
        if any(top and top[0] in self._exclude for top in tops):
            raise NeedsDockerError(f"COPY {word}: tests or solution of the task")
        if not found:
            raise NeedsDockerError(f"COPY {word}: no such file in the build context")
        for path in found:
            if not path.resolve().is_relative_to(self._context):
                raise NeedsDockerError(f"COPY {word}: a link out of the build context")
        return found

    def _folder(self, word: str) -> str:
        path = _writable(posixpath.join(self._plan.workdir, word))
        self._add_folder(path)
        return path

    def _add_folder(self, path: str) -> None:
        if path not in self._folders:
            self._plan.files.append(CopiedFile(target=path))
        while path not in self._folders:
            self._folders.add(path)
            path = posixpath.dirname(path)

    def _add_file(self, target: str, source: Path, mode: int | None) -> None:
        # A link that is named itself is followed; its target was checked to be in the context.
        self._plan.files.append(CopiedFile(target=target, source=source.resolve(), mode=mode))

    def _list(self, rest: str) -> list[str]:
        """Words of `a b` or of the JSON form `["a", "b"]`."""
        if rest.startswith("["):
            return [self._expand(word.rstrip(",")) for word in shlex.split(rest.strip("[] "))]
        return self._words(rest)

    def _words(self, rest: str) -> list[str]:
        try:
            return shlex.split(self._expand(rest))
        except ValueError as error:
            raise NeedsDockerError(f"the Dockerfile line {rest!r}: {error}") from error

    def _expand(self, text: str) -> str:
        """Replace `$A`, `${A}`, `${A:-word}` and `${A:+word}`."""
        values = {**self._arguments, **self._plan.env}

        def replace(match: re.Match[str]) -> str:
            if match[0] == "\\$":
                return "$"
            value = values.get(match[1] or match[2], "")
            if match[3] == "-":
                return value or match[4]
            return (match[4] if value else "") if match[3] == "+" else value

        # Nothing is replaced in single quotes, as in a shell.
        return _QUOTED.sub(
            lambda part: part[0] if part[0][0] == "'" else _VARIABLE.sub(replace, part[0]), text
        )


def _copy_tree(plan: BuildPlan, source: Path, target: str, mode: int | None) -> None:
    for path in sorted(source.rglob("*")):
        name = posixpath.join(target, path.relative_to(source).as_posix())
        plan.files.append(CopiedFile(target=_writable(name), source=path, mode=mode))


def _writable(path: str) -> str:
    """Normalize an absolute path and refuse the places that the sandbox mounts itself."""
    # The extra slash is removed because POSIX keeps two leading ones.
    path = "/" + posixpath.normpath(path).lstrip("/")
    if path.split("/")[1] in _READ_ONLY:
        raise NeedsDockerError(f"a writable {path}: it belongs to the host")
    return path
