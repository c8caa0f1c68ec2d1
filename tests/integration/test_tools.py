"""`harness=tools` in a real sandbox: what the tools do, and what the policy is told."""

import json
from pathlib import Path

import pytest

from arise.agents.rendering import ChatRenderer
from arise.agents.tools import ToolAgent
from arise.callbacks.monitoring import rollout_metrics
from arise.types import FinishReason, InjectedSkill, Iteration, SampledTask, TrajectoryGroup
from harnesses import ITEM_CALLS, JSON_CALLS, call, make_tokenizer, only, play, task_in
from integration.sandboxes import KINDS, REWARD, task_for

OPTIONS = {
    "system_prompt": "Act.",
    "max_turns": 12,
    "max_output_tokens": 4000,
    "command_timeout_s": 20.0,
    "max_observation_chars": 4000,
    "observation_role": "tool",
}
NASTY = "é 'q' \"d\" $x `y` \\n & <|end|>\n\n\ttail\n\n"


def agent(**changes: object) -> ToolAgent:
    return ToolAgent(**{**OPTIONS, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tools_do_what_they_say(kind: str, tmp_path: Path) -> None:
    test = (
        "cd /app; "
        'if [[ $(wc -c <d/f.txt) == %d && $(cat g) == "new & \\\\ \'" ]]; then echo 1; '
        f"else echo 0; fi >{REWARD}" % len(NASTY.replace("tail", "TAIL").encode())
    )
    task = task_for(kind, tmp_path, test, workdir="/app")
    texts = [
        call("write", json.dumps({"path": "d/f.txt", "content": NASTY})),
        call("edit", json.dumps({"path": "d/f.txt", "old": "\ttail", "new": "\tTAIL"})),
        call("read", json.dumps({"path": "d/f.txt", "offset": 2, "limit": 2})),
        call("bash", '{"command": "printf \'a a\' >g; cd d; export X=5; exit 3"}'),
        call("bash", '{"command": "pwd; echo $X"}')
        + call("edit", '{"path": "../g", "old": "a", "new": "b"}'),
        call("edit", json.dumps({"path": "../g", "old": "a a", "new": "new & \\ '"})),
        call("read", '{"path": "/nowhere"}'),
        call("todowrite", '{"todos": [{"content": "t", "status": "in_progress"}]}'),
        "Done.",
    ]
    slots, engine, _ = play(agent(), task, texts, kind=kind)
    trajectory = only(slots)
    assert trajectory.task_reward == 1.0
    assert trajectory.finish_reason is FinishReason.SUBMITTED
    seen = [turn.observation for turn in trajectory.turns]
    assert seen == [
        "written",
        "replaced 1",
        "    2\t\n    3\t\tTAIL",
        "[exit 3]",
        "/app/d\n5\n[exit 1]\nerror: the old text occurs 2 times; give more of it, or set "
        "replace_all",
        "replaced 1",
        "[exit 1]\nerror: cannot read /nowhere",
        "1 of 1 to do",
        "",
    ]
    assert trajectory.turns[3].action == "printf 'a a' >g; cd d; export X=5; exit 3"
    assert trajectory.turns[2].action == 'read {"path": "d/f.txt", "offset": 2, "limit": 2}'
    # Token-exact and append-only: each prompt begins with the one before and its reply.
    assert len(trajectory.rows) == 1
    prompts = [list(request.prompt_token_ids) for request in engine.requests]
    for turn, before, after in zip(trajectory.turns, prompts, prompts[1:], strict=False):
        grown = [*before, *turn.token_ids]
        assert after[: len(grown)] == grown


def test_H01_H02_H03_awkward_calls_run_or_are_explained(tmp_path: Path) -> None:
    test = f"if [[ $(cat /app/f) == '</tool_call>' ]]; then echo 1; else echo 0; fi >{REWARD}"
    texts = [
        '<tool_call>\n{"name":"bash","arguments":{"command":"echo one"}}\n\nI list.</tool_call>',
        call("bash", '{"command": "echo \'</tool_call>\' > /app/f"}'),
        call("bash", '{"command":"echo a"}') + call("bash", '""') + call("bash", "null"),
        '<tool_call>{"name": "bash", "arguments": {"command"</tool_call>',
        call("shell", "{}"),
        "Done.",
    ]
    slots, _, _ = play(agent(), task_in(tmp_path, test), texts)
    trajectory = only(slots)
    assert trajectory.task_reward == 1.0
    missing = "error: bash: the argument 'command' is missing"
    observations = [turn.observation for turn in trajectory.turns]
    assert observations[:3] == ["one", "[ok]", f"a\n{missing}\n{missing}"]
    assert observations[3].startswith("error: the tool call cannot be read: invalid JSON")
    assert observations[4].startswith("error: there is no tool 'shell'")
    report = trajectory.harness
    assert (report.num_tool_calls, report.num_tool_errors) == (7, 4)
    task = task_in(tmp_path, test)
    iteration = Iteration(
        index=0,
        samples=[SampledTask(task=task)],
        groups=[TrajectoryGroup(task=task, slots=(trajectory,))],
    )
    assert rollout_metrics(iteration)["rollout/tool_error_rate"] == pytest.approx(4 / 7)


def test_H05_a_full_context_ends_the_episode_and_is_graded(tmp_path: Path) -> None:
    task = task_in(tmp_path, f"echo 1 >{REWARD}")
    texts = [call("bash", '{"command": "head -c 3000 /dev/zero | tr \'\\\\0\' x"}'), "Done."]
    slots, engine, _ = play(agent(), task, texts, context_tokens=4096, max_output_bytes=20_000)
    trajectory = only(slots)
    assert trajectory.finish_reason is FinishReason.CONTEXT_LIMIT
    assert trajectory.task_reward == 1.0
    first = engine.requests[0]
    assert len(engine.requests) == len(trajectory.turns) == 1
    assert first.sampling.max_tokens == min(4000, 4096 - len(first.prompt_token_ids))


@pytest.mark.parametrize("template", [None, JSON_CALLS, ITEM_CALLS])
def test_definitions_reach_the_prompt_with_every_template(
    template: str | None, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer(template)
    texts = [call("bash", '{"command":"echo a"}') + call("bash", '{"command":"echo b"}'), "Done."]
    skill = InjectedSkill(pair_id=1, revision=0, text="Look twice.")
    slots, engine, _ = play(
        agent(), task_in(tmp_path, f"echo 1 >{REWARD}"), texts, tokenizer=tokenizer, skills=(skill,)
    )
    only(slots)
    prompt, grown = (tokenizer.decode(list(r.prompt_token_ids)) for r in engine.requests)
    renderer = ChatRenderer(tokenizer, observation_role="tool")
    assert renderer.renders_tools == (template is not None)
    assert prompt.count('"todowrite"') == 1
    assert prompt.count("Look twice.") == prompt.count("Do it.") == 1
    if template is not None:
        responses = "".join(f"<tool_response>\n{x}\n</tool_response>" for x in "ab")
        assert grown.endswith(f"<|end|><|user|>{responses}<|end|><|assistant|>")
    else:
        assert grown.endswith("<|end|><|tool|>a<|end|><|tool|>b<|end|><|assistant|>")
