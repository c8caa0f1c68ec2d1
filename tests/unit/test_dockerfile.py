"""The Dockerfile subset, and what it packs."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from arise.environments.dockerfile import (
    NeedsDockerError,
    instructions,
    plan_build,
    plan_environment,
)
from arise.environments.staging import ArchiveCache, archive, archive_layers
from arise.errors import SandboxError
from arise.types import EnvironmentSpec


def context(tmp_path: Path, dockerfile: str | None, **files: str) -> Path:
    folder = tmp_path / "environment"
    folder.mkdir()
    if dockerfile is not None:
        (folder / "Dockerfile").write_text(dockerfile)
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def packed(folder: Path) -> dict[str, str | None]:
    """Name to content of everything that the plan creates; folders are None."""
    with tarfile.open(fileobj=io.BytesIO(archive(plan_build(folder, None).files))) as tar:
        return {
            entry.name: None if entry.isdir() else tar.extractfile(entry).read().decode()
            for entry in tar
        }


def test_instructions_join_lines_and_skip_comments() -> None:
    text = "# syntax=x\nFROM a AS b\n\nRUN x && \\\n  # inside\n  y\nenv A=1"
    assert instructions(text) == [("FROM", "a AS b"), ("RUN", "x &&   y"), ("ENV", "A=1")]


def test_no_dockerfile_copies_everything_to_the_workdir(tmp_path: Path) -> None:
    folder = context(tmp_path, None, a="1", sub__b="2")
    plan = plan_build(folder, None)
    assert (plan.workdir, plan.env) == ("/app", {})
    assert packed(folder) == {"app/a": "1", "app/sub": None, "app/sub/b": "2", "app": None}
    assert plan_build(folder, "/srv/x").files[0].target == "/srv/x/a"
    assert plan_build(None, None).workdir == "/app"


def test_env_both_syntaxes_and_substitution(tmp_path: Path) -> None:
    folder = context(
        tmp_path,
        "ARG BASE=/opt\nFROM python:3.13\nARG V=3\nENV A=1 B='two words' \\\n    C=\"x $V\"\n"
        "ENV OLD a value with spaces\nENV P=${BASE}/bin:${NONE:-d}:${V:+set}:${NONE:+no}\n"
        "ENV PRICE=\\$5 Q='$V' R=\"it's $V\"\nWORKDIR ${BASE}\nWORKDIR sub/./x\n",
    )
    plan = plan_build(folder, None)
    assert plan.env == {
        "A": "1",
        "B": "two words",
        "C": "x 3",
        "OLD": "a value with spaces",
        "P": "/opt/bin:d:set:",
        "PRICE": "$5",
        "Q": "$V",
        "R": "it's 3",
    }
    assert plan.workdir == "/opt/sub/x"
    assert plan_build(folder, "/task").workdir == "/task"


def test_copy_targets(tmp_path: Path) -> None:
    folder = context(
        tmp_path,
        "FROM x\nWORKDIR /app\nCOPY --chown=1:1 one.txt renamed.txt\nCOPY one.txt two.txt data/\n"
        'COPY ["dir", "/srv/copy"]\nCOPY one.txt .\nADD *.txt /opt/\nCOPY one.txt /opt\n'
        "COPY --chmod=640 one.txt /mnt/secret\n",
        **{"one.txt": "1", "two.txt": "2", "dir__in__side": "3"},
    )
    assert packed(folder) == {
        "app": None,
        "app/renamed.txt": "1",
        "app/data": None,
        "app/data/one.txt": "1",
        "app/data/two.txt": "2",
        "srv/copy": None,
        "srv/copy/in": None,
        "srv/copy/in/side": "3",
        "app/one.txt": "1",
        "opt/one.txt": "1",
        "opt/two.txt": "2",
        "mnt/secret": "1",
    }
    assert plan_build(folder, None).files[-2].mode == 0o640


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("RUN apt-get update", "RUN apt-get update"),
        ("COPY --from=build /x /app/x", "COPY --from"),
        ("FROM second", "several stages"),
        ("USER node", "USER node"),
        ("ENTRYPOINT x", "ENTRYPOINT"),
        ("ADD https://example.org/x /app/", "ADD"),
        ("ADD data.tar.gz /app/", "ADD"),
        ("COPY missing /app/", "no such file"),
        ("COPY ../outside /app/", "outside the build context"),
        ("COPY a/../../outside /app/", "outside the build context"),
        ("COPY link /app/", "link out of the build context"),
        ("COPY link/passwd /app/", "link out of the build context"),
        ("COPY a /usr/local/bin/a", "belongs to the host"),
        ("COPY a ../etc/a", "belongs to the host"),
        ("WORKDIR /tests", "belongs to the host"),
        ("COPY a 'b", "quotation"),
        ("COPY a", "COPY a"),
        ("COPY <<EOF /app/x", "COPY"),
        ("HEALTHCHECK CMD true", "HEALTHCHECK"),
        ("NONSENSE", "NONSENSE"),
        ("ENV", "ENV"),
    ],
)
def test_everything_else_needs_docker(tmp_path: Path, line: str, reason: str) -> None:
    folder = context(tmp_path, f"FROM x\nWORKDIR /app\n{line}\n", a="1")
    (tmp_path / "outside").write_text("secret")
    (folder / "link").symlink_to("/etc")
    with pytest.raises(NeedsDockerError, match=reason):
        plan_build(folder, None)


def test_harmless_instructions_are_skipped(tmp_path: Path) -> None:
    folder = context(
        tmp_path, 'FROM x\nLABEL a=b\nUSER root\nEXPOSE 80\nCMD ["x"]\nHEALTHCHECK NONE\n'
    )
    assert plan_build(folder, None).workdir == "/"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (EnvironmentSpec(docker_image="x:1"), "the image x:1"),
        (EnvironmentSpec(gpus=1), "gpus = 1"),
        (EnvironmentSpec(network=True), "network"),
        (EnvironmentSpec(network=False, tests_network=True), "network"),
    ],
)
def test_specs_that_need_docker(spec: EnvironmentSpec, reason: str) -> None:
    with pytest.raises(NeedsDockerError, match=reason):
        plan_environment(spec)


def test_compose_needs_docker(tmp_path: Path) -> None:
    folder = context(tmp_path, None, **{"docker-compose.yaml": ""})
    with pytest.raises(NeedsDockerError, match="docker-compose"):
        plan_environment(EnvironmentSpec(context=folder))


def test_X14_links_are_stored_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text("true")
    (tmp_path / "tests/link").symlink_to("/etc/passwd")
    (tmp_path / "tests/folder").symlink_to("/etc")
    with tarfile.open(fileobj=io.BytesIO(archive_layers((tmp_path / "tests",)))) as tar:
        assert {entry.name: entry.linkname for entry in tar} == {
            "folder": "/etc",
            "link": "/etc/passwd",
            "test.sh": "",
        }


def test_archives_do_not_depend_on_times(tmp_path: Path) -> None:
    folder = context(tmp_path, None, a="1")
    first = archive_layers((folder,))
    os.utime(folder / "a", (1, 1))
    assert archive_layers((folder,)) == first


def test_special_files_and_missing_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SandboxError, match="not a file, folder or link"):
        archive_layers((tmp_path,))
    with pytest.raises(SandboxError, match="no such folder"):
        archive_layers((tmp_path / "missing",))


def test_cache_drops_the_least_recently_used() -> None:
    cache = ArchiveCache(max_bytes=20)
    built: list[str] = []

    def get(key: str) -> bytes:
        return cache.get(key, lambda: built.append(key) or bytes(10))

    for key in ("a", "b", "a", "c", "a", "b"):
        assert len(get(key)) == 10
    assert built == ["a", "b", "c", "b"]
