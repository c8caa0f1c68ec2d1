"""Plays replies through Harbor's own parsers and terminal, and prints what came of them.

Runs in an environment of its own, with Python 3.12 or newer and the package `harbor`:
`python harbor_terminus.py NOTATION FOLDER REPLIES.json`.
"""

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace

from harbor.agents.terminus_2.terminus_json_plain_parser import TerminusJSONPlainParser
from harbor.agents.terminus_2.terminus_xml_plain_parser import TerminusXMLPlainParser
from harbor.agents.terminus_2.tmux_session import TmuxSession


class Host:
    """As much of an environment as a terminal needs, in a folder of this machine."""

    session_id = "parity"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def exec(self, command: str, **_: object) -> SimpleNamespace:
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", command],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return SimpleNamespace(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)


async def main(notation: str, folder: str, path: str) -> None:
    with open(path, encoding="utf-8") as file:
        replies = json.load(file)
    parser = TerminusJSONPlainParser() if notation == "json" else TerminusXMLPlainParser()
    terminal = TmuxSession("harbor", Host(folder), "/dev/null", None, None)
    terminal._attempt_tmux_installation = lambda: asyncio.sleep(0)
    await terminal.start()
    await asyncio.sleep(3.0)
    seen = [{"shown": await terminal.get_incremental_output()}]
    for reply in replies:
        parsed = parser.parse_response(reply)
        for command in parsed.commands:
            await terminal.send_keys(command.keystrokes, min_timeout_sec=min(command.duration, 60))
        seen.append(
            {
                "keys": [command.keystrokes for command in parsed.commands],
                "complete": parsed.is_task_complete,
                "erred": bool(parsed.error),
                "warned": bool(parsed.warning) and not parsed.error,
                "shown": await terminal.get_incremental_output(),
            }
        )
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
