"""`harness=external`: agent programs as processes in the sandbox, good ones and bad ones."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from arise.agents.external import ExternalAgent
from arise.config import register_schemas
from arise.errors import ConfigError
from arise.types import FailureKind, FinishReason, InjectedSkill
from harnesses import JSON_CALLS, call, failure, make_tokenizer, only, play, task_in
from integration.sandboxes import KINDS, REWARD, task_for
from runs import ROOT, TASKS, compose_config, only_run, trajectories

# A whole agent: asks, runs what it is told, says what came of it, until there is no call.
AGENT = r"""
import json, os, subprocess, sys, urllib.request
messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": sys.stdin.read()}]
tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
while True:
    request = urllib.request.Request(
        os.environ["URL"] + "/chat/completions",
        json.dumps({"model": os.environ["MODEL"], "messages": messages, "tools": tools}).encode(),
        {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    print("said", message["content"], flush=True)
    if not message.get("tool_calls"):
        break
    for item in message["tool_calls"]:
        command = json.loads(item["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": item["id"], "content": done.stdout})
sys.exit(3)
"""
OPTIONS: dict[str, Any] = {
    "name": "toy",
    "command": "python3 /agents/toy/agent.py",
    "env": {"URL": "$base_url", "KEY": "$api_key", "MODEL": "$model"},
    "files": {},
    "skill_folders": ["/root/.toy/skills"],
    "forwarder": None,
    "port": 8765,
    "max_turns": 6,
    "max_output_tokens": 500,
    "max_refused_calls": 3,
    "first_call_timeout_s": 60.0,
    "observation_role": "tool",
}
TEXTS = [
    "I look." + call("bash", '{"command": "cat /skills/pdf/SKILL.md ~/.toy/skills/pdf/SKILL.md"}'),
    call("bash", '{"command": "echo done > /app/f"}'),
    "Done.",
]
TEST = f"if [[ $(cat /app/f) == done ]]; then echo 1; else echo 0; fi >{REWARD}"


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)
    (folder / "agent.py").write_text(AGENT)
    return folder


def agent(program: Path, **changes: Any) -> ExternalAgent:
    return ExternalAgent(**{**OPTIONS, "mounts": {"/agents/toy": str(program)}, **changes})


def run(harness: ExternalAgent, task: Any, texts: Any = TEXTS, **options: Any) -> Any:
    return play(harness, task, texts, tokenizer=make_tokenizer(JSON_CALLS), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_is_run_and_recorded(kind: str, tmp_path: Path, program: Path) -> None:
    skills = tmp_path / "skills" / "pdf"
    skills.mkdir(parents=True)
    (skills / "SKILL.md").write_text("how to")
    task = task_for(kind, tmp_path, TEST, workdir="/app", skills=tmp_path / "skills")
    active = InjectedSkill(pair_id=1, revision=0, text="Look twice.")
    slots, engine, tokenizer = run(agent(program), task, kind=kind, skills=(active,))
    trajectory = only(slots)
    assert (trajectory.task_reward, trajectory.finish_reason) == (1.0, FinishReason.SUBMITTED)
    assert len(trajectory.rows) == 1
    assert [turn.action for turn in trajectory.turns] == [
        "cat /skills/pdf/SKILL.md ~/.toy/skills/pdf/SKILL.md",
        "echo done > /app/f",
        None,
    ]
    assert trajectory.turns[0].observation == "how tohow to"
    first = tokenizer.decode(list(engine.requests[0].prompt_token_ids))
    assert "Act.\nSkills:\n- Look twice." in first
    report = trajectory.harness
    assert report.exit_code == 3  # an agent's exit code is no verdict
    assert "said I look.\n" in report.log
    assert report.log.endswith("said Done.\n")


def test_a_missing_program_is_a_typed_failure(tmp_path: Path, program: Path) -> None:
    slots, _, _ = run(agent(program, command="nonsense --yes"), task_in(tmp_path, TEST))
    lost = failure(slots)
    assert lost.kind is FailureKind.HARNESS
    assert "toy was not found in the sandbox" in lost.message
    with pytest.raises(ConfigError, match="toy is not installed"):
        agent(program, mounts={"/agents/toy": "/nowhere"})


def test_a_wrong_endpoint_is_a_typed_failure(tmp_path: Path, program: Path) -> None:
    env = {**OPTIONS["env"], "URL": "http://127.0.0.1:1/v1"}
    slots, engine, _ = run(agent(program, env=env), task_in(tmp_path, TEST))
    lost = failure(slots)
    assert lost.kind is FailureKind.HARNESS
    assert "exit code 1 and got no answer" in lost.message
    assert "Connection refused" in lost.message
    assert engine.requests == []


def test_a_wrong_key_is_a_typed_failure(tmp_path: Path, program: Path) -> None:
    slots, _, _ = run(
        agent(program, env={**OPTIONS["env"], "KEY": "guess"}), task_in(tmp_path, TEST)
    )
    assert "got no answer" in failure(slots).message


def test_a_program_that_never_calls_the_model_is_given_up(tmp_path: Path, program: Path) -> None:
    slots, _, _ = run(
        agent(program, command="sleep 1000", first_call_timeout_s=1.0), task_in(tmp_path, TEST)
    )
    lost = failure(slots)
    assert lost.kind is FailureKind.HARNESS
    assert "did not call the model within 1 s" in lost.message


def test_a_program_that_loops_ends_at_the_turn_limit_and_is_graded(
    tmp_path: Path, program: Path
) -> None:
    texts = [call("bash", '{"command": "echo done > /app/f"}')] * 9
    command = "while :; do python3 /agents/toy/agent.py </dev/null; done"
    slots, engine, _ = run(
        agent(program, command=command, max_turns=4), task_in(tmp_path, TEST, workdir="/app"), texts
    )
    trajectory = only(slots)
    assert (trajectory.task_reward, trajectory.finish_reason) == (1.0, FinishReason.TURN_LIMIT)
    assert len(trajectory.turns) == len(engine.requests) == 4


def test_a_flood_is_cut_and_the_whole_tree_dies_at_the_deadline(
    tmp_path: Path, program: Path
) -> None:
    mark = f"arise-{os.getpid()}"
    command = (
        "python3 /agents/toy/agent.py; yes flood | head -c 30000000; "
        f"(exec -a {mark} sleep 999 &); setsid bash -c 'exec -a {mark} sleep 999' & sleep 999"
    )
    slots, _, _ = run(
        agent(program, command=command),
        task_in(tmp_path, TEST, workdir="/app"),
        timeout_s=20.0,
        storage_mb=16,
    )
    trajectory = only(slots)
    assert (trajectory.task_reward, trajectory.finish_reason) == (1.0, FinishReason.TIMEOUT)
    assert 10_000 < len(trajectory.harness.log) < 45_000  # ends of it, by the sandbox's cap
    assert trajectory.harness.log.startswith("said I look.")
    names = [process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])]
    assert [name for name in names if mark in name[0]] == []


def test_a_context_that_is_full_ends_the_episode_as_such(tmp_path: Path, program: Path) -> None:
    texts = [call("bash", '{"command": "head -c 4000 /dev/zero | tr \'\\\\0\' x"}')] * 3
    slots, _, _ = run(
        agent(program), task_in(tmp_path, TEST, workdir="/app"), texts, context_tokens=3000
    )
    trajectory = only(slots)
    assert (trajectory.task_reward, trajectory.finish_reason) == (0.0, FinishReason.CONTEXT_LIMIT)
    assert trajectory.harness.num_refused_calls == 1


def agents_folder() -> Path:
    return Path(os.environ.get("ARISE_AGENTS", ROOT / ".agents"))


def shipped(name: str, **changes: Any) -> ExternalAgent:
    """A shipped configuration of the harness group."""
    register_schemas()
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
        cfg = compose(config_name=f"harness/{name}").harness
    options = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(options, dict)
    options.pop("_target_")
    return ExternalAgent(**{**options, **changes})


@pytest.mark.slow
@pytest.mark.skipif(not (agents_folder() / "kilo").is_dir(), reason="needs Kilo Code: make kilo")
def test_kilo_plays_an_episode_that_is_recorded(tmp_path: Path) -> None:
    task = task_in(tmp_path, TEST, workdir="/app")
    arguments = json.dumps({"command": "echo done > f", "description": "Write the file"})
    texts = ["<think>I write.</think>" + call("bash", arguments), "Done."]
    slots, engine, _ = run(
        shipped("kilo"),
        task,
        texts,
        context_tokens=200_000,
        memory_mb=4096,
        max_processes=256,
        storage_mb=512,
        timeout_s=200.0,
    )
    trajectory = only(slots)
    assert trajectory.task_reward == 1.0, trajectory.harness
    assert trajectory.finish_reason is FinishReason.SUBMITTED
    assert trajectory.num_generated_tokens == sum(len(t.token_ids) for t in trajectory.turns) > 50
    actions = [turn.action for turn in trajectory.turns]
    assert "echo done > f" in actions
    # What the engine saw is what the rows say, call by call.
    prompts = {tuple(request.prompt_token_ids) for request in engine.requests}
    for row in trajectory.rows:
        start = row.generated_mask.index(True)
        assert row.token_ids[:start] in prompts


@pytest.mark.slow
@pytest.mark.skipif(
    not (agents_folder() / "mini-swe-agent").is_dir(),
    reason="needs mini-swe-agent: make mini-swe-agent",
)
@pytest.mark.skipif(
    shutil.which("python3", path="/usr/bin") is None or sys.version_info[:2] != (3, 11),
    reason="needs the sandbox's Python",
)
def test_mini_swe_agent_plays_an_episode_that_is_recorded(tmp_path: Path) -> None:
    task = task_in(tmp_path, TEST, workdir="/app")
    texts = [
        "I write." + call("bash", '{"command": "echo done > f"}'),
        "I end." + call("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}'),
    ]
    slots, _, _ = run(
        shipped("mini_swe_agent"),
        task,
        texts,
        context_tokens=60_000,
        memory_mb=2048,
        max_processes=128,
        timeout_s=200.0,
    )
    trajectory = only(slots)
    assert trajectory.task_reward == 1.0, trajectory.harness
    assert len(trajectory.turns) == 2
    assert len(trajectory.rows) == 1, trajectory.harness.row_reasons


@pytest.mark.slow
@pytest.mark.skipif(not (agents_folder() / "kilo").is_dir(), reason="needs Kilo Code: make kilo")
def test_kilo_trains_a_tiny_policy(tmp_path: Path) -> None:
    """One iteration: random weights say nothing useful, and what they said is trained."""
    from arise.app import train

    # Room for Kilo Code, which the hand-written tasks do not give.
    shutil.copytree(TASKS / "count-errors", tmp_path / "tasks" / "count-errors")
    manifest = tmp_path / "tasks" / "count-errors" / "task.toml"
    kept = [line for line in manifest.read_text().splitlines() if not line.startswith("memory")]
    manifest.write_text("\n".join(line for line in kept if not line.startswith("storage")))
    train(
        compose_config(
            "experiment=ablation/outcome_only",
            "datamodule=folder",
            f"datamodule.corpus={tmp_path / 'tasks'}",
            "evaluation=none",
            "model=random_tiny",
            "model.loader.context_tokens=65536",
            "harness=kilo",
            "harness.max_output_tokens=8",
            "harness.max_turns=2",
            "environment.memory_mb=4096",
            "environment.max_processes=256",
            "environment.storage_mb=512",
            "rollout.tasks_per_step=1",
            "rollout.rollouts_per_task=2",
            "rollout.context_tokens=65536",
            "rollout.deterministic=false",
            "algorithm.micro_batch_tokens=65536",
            "trainer.max_steps=1",
            "quiet=true",
            f"paths.output_dir={tmp_path / 'outputs'}",
        )
    )
    (records,) = trajectories(only_run(tmp_path / "outputs")).values()
    assert len(records) == 2
    for record in records:
        assert "failure" not in record, record
        assert record["num_generated_tokens"] > 0
        for turn in record["turns"]:
            assert len(turn["token_ids"]) == len(turn["logprobs"]) > 0
            assert set(turn["policy_versions"]) == {0}
