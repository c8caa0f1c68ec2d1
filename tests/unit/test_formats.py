"""Multi-step Harbor, BenchFlow and Terminal-Bench 1 tasks; broken ones; near-duplicates."""

import logging
from pathlib import Path

import pytest

from arise.errors import ConfigError
from arise.tasks.corpus import BrokenTaskError, load_corpus, load_task, scan_corpus
from arise.tasks.near import near_duplicates, overlap, shingles


def write(folder: Path, **files: str) -> Path:
    """Files by path, with `__` for a slash and `_DOT_` for a dot."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def harbor(folder: Path, manifest: str = "", **files: str) -> Path:
    base = {"task_DOT_toml": manifest, "instruction_DOT_md": "Sort.", "tests__test_DOT_sh": "true"}
    return write(folder, **{**base, **files})


STEPS = """
schema_version = "1.3"
multi_step_reward_strategy = "final"
artifacts = ["/srv/out", { source = "/srv/log" }]
[agent]
timeout_sec = 50
[verifier]
env = { A = "task" }
[[steps]]
name = "first"
min_reward = 0.5
[steps.agent]
timeout_sec = 7
[[steps]]
name = "second"
min_reward = { reward = 1.0 }
[steps.verifier]
timeout_sec = 9
env = { B = "step" }
[steps.healthcheck]
command = "true"
interval_sec = 1
"""


def test_steps_of_a_harbor_task(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "a",
        task_DOT_toml=STEPS,
        tests__helper_DOT_py="",
        steps__first__instruction_DOT_md="<!-- canary -->\nMake it.",
        steps__first__tests__test_DOT_sh="",
        steps__first__workdir__given="",
        steps__second__instruction_DOT_md="Mend it.",
        steps__second__tests__test_DOT_sh="",
        steps__second__solution__solve_DOT_sh="",
    )
    task = load_task(folder, task_id="a")
    first, second = task.steps
    assert task.instruction == "Make it.\n\nMend it."
    assert (task.step_reward, task.artifacts) == ("final", ("/srv/out", "/srv/log"))
    assert first.tests == (folder / "tests", folder / "steps/first/tests")
    assert (first.workdir, first.solution) == (folder / "steps/first/workdir", None)
    assert (first.min_reward, second.min_reward) == (0.5, 1.0)
    assert (first.agent_timeout_s, second.agent_timeout_s) == (7, 50)
    assert (first.verifier_timeout_s, second.verifier_timeout_s) == (600, 9)
    assert second.verifier_env == {"A": "task", "B": "step"}
    assert second.solution == folder / "steps/second/solution"
    assert second.healthcheck is not None
    assert (second.healthcheck.interval_s, second.healthcheck.retries) == (1, 3)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ('[[steps]]\nname = "../x"', "[steps.0] name"),
        ('[[steps]]\nname = "absent"', "steps/absent/instruction.md: file is missing"),
        ("steps = 3", "steps = 3 is not a list of tables"),
        ('schema_version = "2.0"', "one of 1.0, 1.1, 1.2, 1.3, 1.4"),
        ('multi_step_reward_strategy = "max"', "one of mean, final"),
        ('[verifier]\nenvironment_mode = "own"', "one of shared, separate"),
        ("artifacts = [1]", "a list of paths"),
        ("[environment.healthcheck]\ninterval_sec = 1", "[environment.healthcheck] command"),
    ],
)
def test_broken_harbor_tasks_name_the_field(tmp_path: Path, manifest: str, problem: str) -> None:
    folder = harbor(tmp_path / "a", manifest)
    with pytest.raises(BrokenTaskError) as caught:
        load_task(folder, task_id="a")
    assert problem in str(caught.value)


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4"])
def test_all_harbor_versions_load(tmp_path: Path, version: str) -> None:
    for key in ("schema_version", "version"):
        folder = harbor(tmp_path / key, f'{key} = "{version}"')
        assert load_task(folder, task_id="a").instruction == "Sort."


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ('[environment]\nos = "windows"', "windows"),
        ('[[environment.mcp_servers]]\nname = "x"', "mcp_servers"),
        ('[verifier.environment]\ndocker_image = "x"', "[verifier] environment"),
    ],
)
def test_what_nothing_here_can_give_is_said(tmp_path: Path, manifest: str, reason: str) -> None:
    task = load_task(harbor(tmp_path / "a", manifest), task_id="a")
    assert reason in task.environment.unsupported


def test_harbor_users_skills_and_separate_grading(tmp_path: Path) -> None:
    manifest = '[agent]\nuser = 1000\n[verifier]\nuser = "root"\nenvironment_mode = "separate"'
    folder = harbor(tmp_path / "a", manifest, environment__skills__s__SKILL_DOT_md="x")
    task = load_task(folder, task_id="a")
    assert (task.environment.user, task.verifier_user, task.is_graded_apart) == (
        "1000",
        "root",
        True,
    )
    assert task.environment.skills == folder / "environment/skills"


@pytest.mark.parametrize(
    ("manifest", "agent", "tests"),
    [
        (
            '[environment]\nnetwork_mode = "public"\n[agent]\nnetwork_mode = "no-network"',
            False,
            True,
        ),
        ('[environment]\nallow_internet = false\n[verifier]\nnetwork_mode = "public"', False, True),
        ('[verifier]\nnetwork_mode = "no-network"', None, False),
        ('[agent]\nnetwork_mode = "public"', True, None),
        ('[environment]\nnetwork_mode = "public"\n[verifier]\nnetwork_mode = "public"', True, None),
    ],
)
def test_harbor_networks_of_agent_and_tests(
    tmp_path: Path, manifest: str, agent: bool | None, tests: bool | None
) -> None:
    spec = load_task(harbor(tmp_path / "a", manifest), task_id="a").environment
    assert (spec.network, spec.tests_network) == (agent, tests)


def test_harbor_details(tmp_path: Path) -> None:
    manifest = (
        '[environment]\nos = "Linux"\nskills_dir = "/app/skills"\n[environment.healthcheck]\n'
        'command = "true"\nstart_period_sec = 9\nstart_interval_sec = 0.5\n'
    )
    spec = load_task(harbor(tmp_path / "a", manifest), task_id="a").environment
    assert (spec.unsupported, spec.skills_dir) == ("", "/app/skills")
    assert spec.healthcheck is not None
    assert (spec.healthcheck.start_period_s, spec.healthcheck.start_interval_s) == (9.0, 0.5)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("[steps.agent]\nuser = 1000", "another [agent] user in one of its steps"),
        ('[steps.verifier]\nenvironment_mode = "separate"', "another [verifier] environment_mode"),
        ('[steps.verifier.environment]\ndocker_image = "x"', "own verifier containers"),
        ('[steps.agent]\nuser = "agent"', ""),
    ],
)
def test_steps_share_one_sandbox(tmp_path: Path, step: str, reason: str) -> None:
    manifest = f'[agent]\nuser = "agent"\n[[steps]]\nname = "one"\nartifacts = ["/a"]\n{step}'
    files = {"steps__one__instruction_DOT_md": "Do.", "steps__one__tests__test_DOT_sh": ""}
    task = load_task(harbor(tmp_path / "a", manifest, **files), task_id="a")
    assert task.artifacts == ("/a",)
    assert reason in task.environment.unsupported
    assert bool(reason) == bool(task.environment.unsupported)


BENCHFLOW = """---
schema_version: '1.3'
metadata: {category: data, tags: [csv]}
verifier: {timeout_sec: 30, env: {X: y}}
agent: {timeout_sec: 120.0}
sandbox: {cpus: 2, memory_mb: 512, network_mode: no-network, build_timeout_sec: 60}
oracle: {env: {KEY: "1"}}
---
Not the prompt.

## prompt

Make `hello.txt`.

## Notes

This heading belongs to it.
"""


def test_benchflow_task(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "a",
        task_DOT_md=BENCHFLOW,
        environment__Dockerfile="FROM x",
        environment__skills__csv__SKILL_DOT_md="x",
        oracle__solve_DOT_sh="",
        verifier__test_DOT_sh="",
    )
    (task,) = load_corpus(tmp_path)
    assert task.instruction.startswith("Make `hello.txt`.")
    assert task.instruction.endswith("This heading belongs to it.")
    assert (task.tests, task.solution) == (folder / "verifier", folder / "oracle")
    assert task.verifier_env == {"BENCHFLOW_VERIFIER_DIR": "/tests", "X": "y"}
    assert (task.domain, task.tags, task.agent_timeout_s) == ("data", ("csv",), 120)
    environment = task.environment
    assert (environment.cpus, environment.memory_mb, environment.network) == (2, 512, False)
    assert environment.skills == folder / "environment/skills"
    assert task.solution_env == {"KEY": "1"}
    assert environment.unsupported == ""


def test_null_in_front_matter_means_not_given(tmp_path: Path) -> None:
    text = "---\nsandbox: {gpus: null, env: null, allow_internet: null, cpus: null}\n---\nDo."
    folder = write(tmp_path / "a", task_DOT_md=text, verifier__test_DOT_sh="")
    spec = load_task(folder, task_id="a").environment
    assert (spec.gpus, spec.env, spec.network, spec.cpus) == (0, {}, None, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("---\nverifier: [1]\n---\nDo.", "verifier = [1] is not a table"),
        ("---\na: [\n---\nDo.", "not valid YAML"),
        ("---\na: 1\nDo.", "does not begin with front matter"),
        ("---\n---\n\n## prompt\n\n", "says nothing"),
        ("---\nsandbox: {cpus: much}\n---\nDo.", "[sandbox] cpus = 'much'"),
    ],
)
def test_broken_benchflow_tasks(tmp_path: Path, text: str, problem: str) -> None:
    folder = write(tmp_path / "a", task_DOT_md=text, verifier__test_DOT_sh="")
    with pytest.raises(BrokenTaskError) as caught:
        load_task(folder, task_id="a")
    assert problem in str(caught.value)


def test_other_files_of_that_name_are_no_tasks(tmp_path: Path) -> None:
    write(tmp_path / "notes", task_DOT_md="# A note", task_DOT_yaml="a: 1")
    harbor(tmp_path / "good")
    assert [task.id for task in load_corpus(tmp_path)] == ["good"]


COMPOSE = (
    "services:\n  client:\n    build: {dockerfile: Dockerfile}\n    command: [sleep, infinity]\n"
)
LEGACY = "instruction: |-\n  Fix it.\ndifficulty: easy\ncategory: software\ntags: [git]\n"


def legacy(folder: Path, manifest: str = LEGACY, **files: str) -> Path:
    base = {
        "task_DOT_yaml": manifest,
        "Dockerfile": "FROM x",
        "docker-compose_DOT_yaml": COMPOSE,
        "run-tests_DOT_sh": "",
        "tests__test_outputs_DOT_py": "",
        "solution_DOT_sh": "",
    }
    return write(folder, **{**base, **files})


def test_legacy_task(tmp_path: Path) -> None:
    folder = legacy(tmp_path / "a", LEGACY + "max_test_timeout_sec: 90\n")
    (task,) = load_corpus(tmp_path)
    assert (task.instruction, task.domain, task.tags) == ("Fix it.", "software", ("git",))
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (360, 150)
    assert task.extra_tests == (folder / "tests", folder / "run-tests.sh")
    assert (task.tests / "test.sh").is_file()
    assert task.solution == folder
    assert task.environment.network
    assert "tests" in task.environment.exclude
    assert task.environment.unsupported == ""


@pytest.mark.parametrize(
    ("manifest", "compose", "reason"),
    [
        (LEGACY + "parser_name: swebench\n", COMPOSE, "parser_name"),
        (LEGACY + "run_tests_in_same_shell: true\n", COMPOSE, "run_tests_in_same_shell"),
        (LEGACY, COMPOSE + "  database: {image: x}\n", "not one service"),
        (LEGACY, COMPOSE + "    privileged: true\n", "privileged"),
    ],
)
def test_legacy_tasks_that_need_more(
    tmp_path: Path, manifest: str, compose: str, reason: str
) -> None:
    folder = legacy(tmp_path / "a", manifest, **{"docker-compose_DOT_yaml": compose})
    assert reason in load_task(folder, task_id="a").environment.unsupported


def test_broken_tasks_are_listed_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harbor(tmp_path / "good")
    harbor(tmp_path / "bad", "[agent]\ntimeout_sec = 0")
    write(tmp_path / "worse", task_DOT_yaml="instruction: x\n", tests__x="")
    scan = scan_corpus(tmp_path)
    assert [task.id for task in scan.tasks] == ["good"]
    assert list(scan.broken) == ["bad", "worse"]
    error = scan.broken["bad"]
    assert (error.file, error.field) == (tmp_path / "bad" / "task.toml", "[agent] timeout_sec")
    assert error.reason == "= 0 is not a number above 0"
    with pytest.raises(ConfigError, match=r"2 of 3 tasks are broken.*on_broken=skip") as caught:
        load_corpus(tmp_path)
    assert str(tmp_path / "worse" / "run-tests.sh") in str(caught.value)
    with caplog.at_level(logging.WARNING):
        assert [task.id for task in load_corpus(tmp_path, on_broken="skip")] == ["good"]
    assert [message.split(" is")[0] for message in caplog.messages] == ["task bad", "task worse"]
    with pytest.raises(ConfigError, match=r"datamodule\.on_broken = 'maybe'"):
        load_corpus(tmp_path, on_broken="maybe")
    with pytest.raises(ConfigError, match="none of 1 tasks can be read"):
        load_corpus(tmp_path / "bad", on_broken="skip")


def test_similarity_of_texts() -> None:
    text = "one two three four five six seven"
    assert len(shingles(text)) == 3
    assert shingles("One, TWO!") == shingles("one two")
    assert overlap(shingles(text), shingles(f"zero {text} eight")) == 1.0
    assert overlap(shingles("one two three four five x"), shingles(text)) == 0.5
    assert overlap(shingles(""), shingles(text)) == 0.0


def test_near_duplicates(tmp_path: Path) -> None:
    words = " ".join(f"word{index}" for index in range(20))
    harbor(tmp_path / "train" / "copy", instruction_DOT_md=f"Please {words} now")
    harbor(tmp_path / "train" / "other", instruction_DOT_md="Sort these lines by their length")
    harbor(tmp_path / "bench" / "original", instruction_DOT_md=words, tests__test_DOT_sh="exit 1")
    train, bench = load_corpus(tmp_path / "train"), load_corpus(tmp_path / "bench")
    (pair,) = near_duplicates(train, bench, threshold=0.8)
    assert (pair.task_id, pair.other_id, pair.part) == ("copy", "original", "instruction")
    assert pair.similarity == 1.0
