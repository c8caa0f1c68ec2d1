"""A tmux terminal in the sandbox: keys in, new output or the screen out."""

from __future__ import annotations

import asyncio
import base64
import shlex
import time

from arise.environments.base import Environment, ExecResult
from arise.errors import HarnessError

WIDTH, HEIGHT = 160, 40
MAX_OUTPUT_BYTES = 10_000
# tmux refuses longer commands; what does not fit is pasted.
_MAX_KEYS_BYTES = 16_000
_CALL_TIMEOUT_S = 30.0
_INSTALL_TIMEOUT_S = 300.0
_SESSION = "agent"
_INSTALL = (
    "command -v tmux >/dev/null || { command -v apt-get >/dev/null && "
    "{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "
    "--no-install-recommends tmux; } || apk add --no-cache tmux || dnf install -y -q tmux; } "
    ">/dev/null 2>&1; tmux -V"
)
# The history has to be long before the window exists. UTF-8 whatever the locale says (-u).
_START = (
    f"TERM=xterm-256color SHELL=/bin/bash tmux -u start-server \\; set-option -g history-limit "
    f"10000000 \\; new-session -d -x {WIDTH} -y {HEIGHT} -s {_SESSION} 'bash --login'"
)
# First line: lines scrolled out, the cursor's line, whether a full-screen program runs. Then what
# came since the line that the cursor was in ($1), or the screen if that cannot be told.
_CAPTURE = r"""
set -- %s $(tmux display-message -p -t %s '#{history_size} #{cursor_y} #{alternate_on}')
[ -n "$4" ] || exit 1
echo "$2 $3 $4"
if [ "$1" -ge 0 ] && [ "$4" = 0 ] && [ $(($2 + $3)) -ge "$1" ]; then
  echo new; tmux capture-pane -p -t %s -S $(($1 - $2))
else echo screen; tmux capture-pane -p -t %s; fi"""


def limit_output(text: str, max_bytes: int = MAX_OUTPUT_BYTES) -> str:
    """The first and the last half of `max_bytes`, with a line between that says what is missing."""
    data = text.encode("utf-8", errors="replace")
    if len(data) <= max_bytes:
        return text
    half = max_bytes // 2
    head = data[:half].decode("utf-8", errors="ignore")
    tail = data[-half:].decode("utf-8", errors="ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[{missing} bytes in the middle left out]\n{tail}"


class Terminal:
    """One episode's terminal.

    Args:
        environment: The episode's sandbox.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._line = -1

    async def start(self) -> None:
        """Open the terminal; tmux is installed where it is absent and the task has a network.

        Raises:
            HarnessError: There is no tmux, or it does not start.
        """
        found = await self._environment.exec(_INSTALL, timeout_s=_INSTALL_TIMEOUT_S)
        if found.exit_code != 0:
            raise HarnessError(
                "harness=terminus2 needs the program tmux in the sandbox; it is absent and could "
                "not be installed. Add it to the task's image"
            )
        result = await self._call(_START)
        if result.exit_code != 0:
            raise HarnessError(f"tmux does not start in the sandbox: {result.output[-500:]}")

    async def send(self, keys: str, *, wait_s: float) -> None:
        """Type `keys` and wait; names such as C-c, alone, are the keys they name."""
        started = time.monotonic()
        data = keys.encode("utf-8", errors="replace")
        if len(data) + 4 * data.count(b"'") > _MAX_KEYS_BYTES:
            packed = base64.b64encode(data).decode()
            await self._require(
                f"printf %s {packed} | base64 -d | tmux load-buffer -b keys - && "
                f"tmux paste-buffer -d -b keys -t {_SESSION}"
            )
        elif keys:
            text = data.decode("utf-8")
            await self._require(f"tmux send-keys -t {_SESSION} -- {shlex.quote(text)}")
        await asyncio.sleep(max(0.0, wait_s - (time.monotonic() - started)))

    async def output(self) -> str:
        """What came since the last look, headed as such, or the screen."""
        result = await self._call(_CAPTURE % (self._line, *[_SESSION] * 3))
        if result.exit_code != 0:
            return "[the terminal has ended]"
        numbers, _, rest = result.output.partition("\n")
        kind, _, text = rest.partition("\n")
        scrolled, cursor, is_full_screen = (int(number) for number in numbers.split())
        self._line = -1 if is_full_screen else scrolled + cursor
        text = text.rstrip()  # rows of the screen below the last one that is in use
        is_new = kind == "new" and text
        heading = "New Terminal Output:" if is_new else "Current Terminal Screen:"
        return limit_output(f"{heading}\n{text}")

    async def _require(self, command: str) -> None:
        result = await self._call(command)
        if result.exit_code != 0 and await self._revive():
            result = await self._call(command)
        if result.exit_code != 0:
            raise HarnessError(f"keys could not be sent to tmux: {result.output[-300:].strip()}")

    async def _revive(self) -> bool:
        """A new terminal in place of one that the agent ended, with `exit` for instance."""
        if (await self._call(f"tmux has-session -t {_SESSION}")).exit_code == 0:
            return False
        self._line = -1
        return (await self._call(_START)).exit_code == 0

    async def _call(self, command: str) -> ExecResult:
        # In a shell of its own: the resident one keeps its variables.
        return await self._environment.exec(f"( {command}\n)", timeout_s=_CALL_TIMEOUT_S)
