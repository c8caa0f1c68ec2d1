"""The same replies through Harbor's own Terminus-2 and ours: the same terminal, the same files.

Optional: ARISE_HARBOR_PYTHON names a Python (3.12 or newer) that has the package `harbor`.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arise.agents.terminus2.json_reply import parse_json
from arise.agents.terminus2.terminal import Terminal, limit_output
from arise.agents.terminus2.xml_reply import parse_xml
from arise.environments.base import ExecResult

PYTHON = os.environ.get("ARISE_HARBOR_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parity,
    pytest.mark.skipif(not PYTHON, reason="ARISE_HARBOR_PYTHON names no Python with harbor"),
]


def as_json(*commands: tuple[str, float], **more: object) -> str:
    sent = [{"keystrokes": keys, "duration": seconds} for keys, seconds in commands]
    return json.dumps({"analysis": "a", "plan": "p", "commands": sent, **more})


def as_xml(*commands: tuple[str, float], end: str = "</response>") -> str:
    sent = "".join(f'<keystrokes duration="{s}">{keys}</keystrokes>' for keys, s in commands)
    return f"<response><analysis>a</analysis><plan>p</plan><commands>{sent}</commands>{end}"


REPLIES = {
    "json": [
        as_json(("echo one > f\n", 0.5), ("cat f\n", 0.7)),
        "so: " + as_json(("printf 'a\\nb\\n'\n", 0.7)),
        as_json(("seq 200\n", 1.0))[:-1],
        as_json(("sleep 50\n", 0.5), ("C-c", 0.7)),
        as_json(),
        '{"analysis": 1',
        as_json(("stty -echo; cat > g\n", 0.5), (("y" * 900 + "\n") * 20, 1.5), ("C-d", 0.7)),
        as_json(("stty echo\n", 0.7)),
        as_json(("clear\n", 0.7)),
        as_json(task_complete="yes"),
    ],
    "xml": [
        as_xml(("echo 'a & <b>' > f\n", 0.5), ("cat f\n", 0.7)),
        as_xml(("ls\n", 0.7), end=""),
        "no tags",
        as_xml(end="<task_complete>true</task_complete></response>"),
    ],
}


class Host:
    """The same surroundings as Harbor's side has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ExecResult(exit_code=done.returncode, output=done.stdout)


async def ours(notation: str, folder: Path, replies: Sequence[str]) -> list[dict[str, Any]]:
    parse = parse_json if notation == "json" else parse_xml
    terminal = Terminal(Host(folder))  # type: ignore[arg-type]
    await terminal.start()
    await asyncio.sleep(3.0)
    seen: list[dict[str, Any]] = [{"shown": await terminal.output()}]
    for reply in replies:
        parsed = parse(reply)
        for command in parsed.commands:
            await terminal.send(command.keys, wait_s=min(command.duration_s, 60))
        seen.append(
            {
                "keys": [command.keys for command in parsed.commands],
                "complete": parsed.is_complete,
                "erred": bool(parsed.error),
                "warned": bool(parsed.warnings) and not parsed.error,
                "shown": await terminal.output(),
            }
        )
    return seen


def lines(shown: str) -> list[str]:
    """What a terminal shows, without the blank rows and the padding of the screen."""
    return [line.rstrip() for line in shown.splitlines() if line.strip()]


@pytest.mark.parametrize("notation", ["json", "xml"])
def test_both_see_the_same(notation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = REPLIES[notation]
    (tmp_path / "replies.json").write_text(json.dumps(replies))
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # a login shell without anybody's settings
    results = {}
    for side in ("harbor", "arises"):
        folder = tmp_path / side / "work"
        folder.mkdir(parents=True)
        try:
            if side == "arises":
                results[side] = asyncio.run(ours(notation, folder, replies))
            else:
                script = Path(__file__).with_name("harbor_terminus.py")
                done = subprocess.run(
                    [PYTHON, script, notation, folder, tmp_path / "replies.json"],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                results[side] = json.loads(done.stdout.splitlines()[-1])
        finally:
            subprocess.run(["tmux", "kill-server"], check=False, stderr=subprocess.DEVNULL)
    for mine, theirs in zip(results["arises"], results["harbor"], strict=True):
        for key in ("keys", "complete", "erred", "warned"):
            assert mine.get(key) == theirs.get(key), (key, mine, theirs)
        # Harbor's agent limits what its terminal gives; ours does it in the terminal.
        shown = limit_output(theirs["shown"].rstrip().replace("/harbor/", "/arises/"))
        assert lines(mine["shown"]) == lines(shown)
    files = {
        side: {p.name: p.read_bytes() for p in (tmp_path / side / "work").iterdir()}
        for side in results
    }
    assert files["arises"] == files["harbor"] != {}
