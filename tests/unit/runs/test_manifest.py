"""The label of a checkpoint: what is not ours, too new or damaged is refused in one sentence."""

import json
from pathlib import Path

import pytest

from arise.errors import ConfigError
from arise.runs.manifest import FORMAT, read_manifest, write_manifest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "step_000004"
    (folder / "shards").mkdir(parents=True)
    (folder / "meta.pt").write_bytes(b"x" * 100)
    (folder / "shards" / "0").write_bytes(b"y" * 10)
    write_manifest(folder, step=4, num_processes=2)
    return folder


def change(checkpoint: Path, **fields: object) -> None:
    file = checkpoint / "arise.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_what_was_written_is_read(checkpoint: Path) -> None:
    label = read_manifest(checkpoint)
    assert (label["format"], label["step"], label["num_processes"]) == (FORMAT, 4, 2)
    assert {name: entry["bytes"] for name, entry in label["files"].items()} == {
        "meta.pt": 100,
        "shards/0": 10,
    }


def test_a_foreign_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not a checkpoint of this program: it has no arise\.js"):
        read_manifest(tmp_path)


def test_a_format_from_the_future(checkpoint: Path) -> None:
    change(checkpoint, format=FORMAT + 1)
    with pytest.raises(ConfigError, match=r"format 2, written by a newer version.*up to 1: update"):
        read_manifest(checkpoint)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "new"}', "\x00", "{}"])
def test_a_label_that_cannot_be_read(checkpoint: Path, content: str) -> None:
    (checkpoint / "arise.json").write_text(content)
    with pytest.raises(ConfigError, match=r"arise\.json' is damaged and cannot be read"):
        read_manifest(checkpoint)


def test_a_file_that_was_cut_off(checkpoint: Path) -> None:
    (checkpoint / "meta.pt").write_bytes(b"x" * 99)
    with pytest.raises(ConfigError, match=r"meta\.pt has 99 of 100 bytes; give an older checkpoi"):
        read_manifest(checkpoint)


def test_a_flipped_bit(checkpoint: Path) -> None:
    (checkpoint / "meta.pt").write_bytes(b"x" * 50 + b"y" + b"x" * 49)
    with pytest.raises(ConfigError, match=r"damaged: meta\.pt has other content than was saved"):
        read_manifest(checkpoint)


def test_large_files_are_known_by_their_size(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arise.runs.manifest.HASHED_BYTES", 99)
    write_manifest(checkpoint, step=4, num_processes=1)
    files = read_manifest(checkpoint)["files"]
    assert [name for name, entry in files.items() if "sha256" in entry] == ["shards/0"]


def test_a_file_that_is_missing(checkpoint: Path) -> None:
    (checkpoint / "shards" / "0").unlink()
    with pytest.raises(ConfigError, match="damaged: shards/0 is missing"):
        read_manifest(checkpoint)


def test_a_renamed_checkpoint(checkpoint: Path) -> None:
    other = checkpoint.rename(checkpoint.with_name("step_000008"))
    with pytest.raises(ConfigError, match="holds step 4, not the one it is named after"):
        read_manifest(other)
