import logging
from pathlib import Path

import pytest

from arise.errors import ConfigError
from arise.tasks.corpus import BrokenTaskError, load_corpus, load_task


def write_task(
    folder: Path, toml: str = "", instruction: str = "Sort the file.", *, solution: bool = False
) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test.sh").write_text("true\n")
    (folder / "task.toml").write_text(toml, encoding="utf-8")
    (folder / "instruction.md").write_text(instruction, encoding="utf-8")
    if solution:
        (folder / "solution").mkdir()
    return folder


def test_C05_keys_are_read_from_their_tables(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "a",
        """
        schema_version = "1.4"
        timeout_sec = 1
        [metadata]
        tags = ["build", "debug", "build"]
        category = "software"
        timeout_sec = 2
        [agent]
        timeout_sec = 7
        [verifier]
        timeout_sec = 9.5
        env = { MODE = "strict" }
        [environment]
        timeout_sec = 3
        build_timeout_sec = 11
        docker_image = "debian:12"
        workdir = "/app"
        cpus = 1
        memory_mb = 300
        storage_mb = 200
        gpus = 2
        network_mode = "public"
        env = { LANG = "C.UTF-8" }
        """,
        solution=True,
    )
    (folder / "environment").mkdir()
    task = load_task(folder, task_id="a")
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (7, 9.5)
    assert task.verifier_env == {"MODE": "strict"}
    assert (task.tags, task.domain) == (("build", "debug"), "software")
    assert task.solution == folder / "solution"
    environment = task.environment
    assert environment.context == folder / "environment"
    assert (environment.docker_image, environment.workdir) == ("debian:12", "/app")
    assert (environment.cpus, environment.memory_mb, environment.storage_mb) == (1, 300, 200)
    assert (environment.gpus, environment.network) == (2, True)
    assert environment.build_timeout_s == 11
    assert environment.env == {"LANG": "C.UTF-8"}


def test_limits_default_to_none(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path / "a"), task_id="a")
    environment = task.environment
    assert task.agent_timeout_s is None
    assert task.verifier_timeout_s == 600
    assert task.solution is None
    assert environment.context is None
    assert (environment.cpus, environment.memory_mb, environment.storage_mb) == (None, None, None)
    assert (environment.gpus, environment.network, environment.build_timeout_s) == (0, None, 600)


def test_C05_an_unknown_key_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_task(tmp_path / "a", "[agent]\ntimeout = 7\n[metadata]\nanything = 1\n")
    with caplog.at_level(logging.WARNING):
        load_task(folder, task_id="a")
    (message,) = caplog.messages
    assert "[agent] timeout is not known" in message
    assert str(folder / "task.toml") in message


@pytest.mark.parametrize(
    ("size", "mebibytes"),
    [("4G", 4096), ("512M", 512), ("1.5GB", 1536), ("2GiB", 2048), ("1T", 1048576), ("512K", 1)],
)
def test_deprecated_sizes(tmp_path: Path, size: str, mebibytes: int) -> None:
    folder = write_task(tmp_path / "a", f'[environment]\nmemory = "{size}"\nstorage = "{size}"')
    environment = load_task(folder, task_id="a").environment
    assert (environment.memory_mb, environment.storage_mb) == (mebibytes, mebibytes)


def test_the_new_key_wins_over_the_deprecated_one(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "a", '[environment]\nmemory = "4G"\nmemory_mb = 300')
    assert load_task(folder, task_id="a").environment.memory_mb == 300


@pytest.mark.parametrize(
    ("toml", "network"),
    [
        ("", None),
        ("allow_internet = true", True),
        ("allow_internet = false", False),
        ('network_mode = "allowlist"', True),
        ('network_mode = "no-network"\nallow_internet = true', False),
    ],
)
def test_network(tmp_path: Path, toml: str, network: bool | None) -> None:
    folder = write_task(tmp_path / "a", f"[environment]\n{toml}")
    assert load_task(folder, task_id="a").environment.network is network


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<!-- harbor-canary GUID 1 -->\n# CANARY GUID 2\n\n# Title\nDo it.", "# Title\nDo it."),
        ("<!-- canary -->\r\nDo it.\r\n", "Do it."),
        ("Do it.\n# a canary further down stays", "Do it.\n# a canary further down stays"),
        ("# Title\n<!-- canary -->\nDo it.", "# Title\n<!-- canary -->\nDo it."),
        ("\ufeff<!-- canary -->\nDo it.", "Do it."),
    ],
)
def test_only_leading_canary_lines_are_cut(tmp_path: Path, text: str, expected: str) -> None:
    folder = write_task(tmp_path / "a")
    (folder / "instruction.md").write_bytes(text.encode())
    assert load_task(folder, task_id="a").instruction == expected.replace("\r\n", "\n")


def test_variables_come_from_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARISE_TEST_VALUE", "x")
    monkeypatch.delenv("ARISE_TEST_ABSENT", raising=False)
    folder = write_task(
        tmp_path / "a",
        """
        [environment.env]
        A = "${ARISE_TEST_VALUE}"
        B = "pre-${ARISE_TEST_ABSENT:-y z}-post"
        C = "${ARISE_TEST_ABSENT:-}"
        D = "$HOME"
        """,
    )
    env = load_task(folder, task_id="a").environment.env
    assert env == {"A": "x", "B": "pre-y z-post", "C": "", "D": "$HOME"}


@pytest.mark.parametrize(
    ("toml", "field"),
    [
        ('[agent]\ntimeout_sec = "7"', "[agent] timeout_sec = '7'"),
        ("[agent]\ntimeout_sec = 0", "[agent] timeout_sec = 0"),
        ("[verifier]\ntimeout_sec = nan", "[verifier] timeout_sec = nan"),
        ("[verifier]\nenv = 3", "[verifier] env = 3"),
        ("[environment]\nmemory_mb = -1", "[environment] memory_mb = -1"),
        ("[environment]\ncpus = true", "[environment] cpus = True"),
        ("[environment]\ngpus = 0.5", "[environment] gpus = 0.5"),
        ('[environment]\nmemory = "much"', "[environment] memory = 'much'"),
        ('[environment]\nallow_internet = "no"', "[environment] allow_internet = 'no'"),
        ('[environment]\nnetwork_mode = "lan"', "[environment] network_mode = 'lan'"),
        ("[environment.env]\nA = 1", "[environment] env.A = 1"),
        ('[environment.env]\nA = "${ARISE_TEST_ABSENT}"', "ARISE_TEST_ABSENT is not set"),
        ('[metadata]\ntags = "build"', "[metadata] tags = 'build'"),
        ("environment = 3", "environment = 3"),
        ("[agent", "not valid TOML"),
    ],
)
def test_a_broken_task_names_file_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, field: str
) -> None:
    monkeypatch.delenv("ARISE_TEST_ABSENT", raising=False)
    folder = write_task(tmp_path / "a", toml)
    with pytest.raises(BrokenTaskError) as caught:
        load_task(folder, task_id="a")
    assert str(folder / "task.toml") in str(caught.value)
    assert field in str(caught.value)
    assert "datamodule.corpus" in str(caught.value)


@pytest.mark.parametrize("name", ["instruction.md", "tests/test.sh"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_task(tmp_path / "a")
    (folder / name).unlink()
    with pytest.raises(BrokenTaskError, match="file is missing") as caught:
        load_task(folder, task_id="a")
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize(("data", "problem"), [(b"\xff", "cannot be read"), (b"  \n", "nothing")])
def test_an_unusable_instruction_is_named(tmp_path: Path, data: bytes, problem: str) -> None:
    folder = write_task(tmp_path / "a")
    (folder / "instruction.md").write_bytes(data)
    with pytest.raises(BrokenTaskError, match=problem) as caught:
        load_task(folder, task_id="a")
    assert str(folder / "instruction.md") in str(caught.value)


def test_ids_are_paths_below_the_corpus_wherever_it_lies(tmp_path: Path) -> None:
    for corpus in ("one", "two"):
        for name in ("z", "a/b", "a/c"):
            write_task(tmp_path / corpus / name)
    first = [task.id for task in load_corpus(tmp_path / "one")]
    assert first == ["a/b", "a/c", "z"]
    assert [task.id for task in load_corpus(str(tmp_path / "two"))] == first


def test_several_folders_prefix_their_names(tmp_path: Path) -> None:
    write_task(tmp_path / "one" / "a")
    write_task(tmp_path / "two" / "a")
    tasks = load_corpus([tmp_path / "two", tmp_path / "one"])
    assert [task.id for task in tasks] == ["one/a", "two/a"]


def test_a_folder_may_be_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "sorting")
    assert [task.id for task in load_corpus(tmp_path / "sorting")] == ["sorting"]
    monkeypatch.chdir(tmp_path / "sorting")
    assert [task.id for task in load_corpus(".")] == ["sorting"]


def test_a_manifest_inside_a_task_is_one_of_its_files(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "a")
    (folder / "environment" / "sample").mkdir(parents=True)
    (folder / "environment" / "sample" / "task.toml").write_text("broken [")
    assert [task.id for task in load_corpus(tmp_path)] == ["a"]


def test_duplicate_ids_are_refused_with_both_places(tmp_path: Path) -> None:
    first = write_task(tmp_path / "x" / "train" / "a")
    second = write_task(tmp_path / "y" / "train" / "a")
    with pytest.raises(ConfigError, match="ids must be unique") as caught:
        load_corpus([tmp_path / "x" / "train", tmp_path / "y" / "train"])
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_nothing_to_load_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_corpus(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no task found"):
        load_corpus(tmp_path)
    with pytest.raises(ConfigError, match="empty list"):
        load_corpus([])
