"""The command that runs an agent program in a sandbox."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from string import Template

PLACE = "/arise"  # where the proxy's folder stands in a sandbox
LOG = "/logs/agent/agent.log"
LOG_BYTES = 1 << 20
NO_PROGRAM, NO_FORWARDER = 127, 98

_SCRIPT = r"""(
mkdir -p /logs/agent
$exports
for folder in $skill_folders; do
  [ -d /skills ] && mkdir -p "$$(dirname "$$folder")" && ln -sfn /skills "$$folder"
done
$files
if command -v python3 >/dev/null; then python3 $place/forward.py $port $place/model.sock &
elif command -v node >/dev/null; then node $place/forward.js $port $place/model.sock &
elif [ -n $own_forwarder ]; then eval $own_forwarder &
else echo "neither python3 nor node is in the sandbox"; exit $no_forwarder; fi
forwarder=$$!
for _ in $$(seq 1200); do (: <>/dev/tcp/127.0.0.1/$port) 2>/dev/null && break; sleep 0.05; done
printf %s $prompt | { $command
} > >(head -c $log_bytes >$log; cat >/dev/null) 2>&1
code=$$? writer=$$!
# What the program left running may hold its output for ever: no longer than a second.
for _ in $$(seq 20); do kill -0 $$writer 2>/dev/null || break; sleep 0.05; done
kill $$forwarder 2>/dev/null
wait $$forwarder 2>/dev/null
exit $$code
)"""


def script(
    *,
    command: str,
    prompt: str,
    env: Mapping[str, str],
    files: Mapping[str, str],
    skill_folders: Sequence[str],
    forwarder: str | None,
    port: int,
) -> str:
    """Shell text that runs the program and ends with its exit code.

    The program's output goes to a log of bounded size; what comes after that is dropped.

    Args:
        command: Shell text; the prompt is its standard input.
        prompt: What the agent is asked to do.
        env: Variables of the program.
        files: Content by path of files that the program reads.
        skill_folders: Places where the program looks for skills.
        forwarder: Shell text that runs `forward.js` by the program's own interpreter, for images
            without Python and Node; `None` if there is none.
        port: Port in the sandbox that leads to the model.
    """
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())
    writes = "\n".join(
        f'mkdir -p "$(dirname {shlex.quote(path)})" && '
        f"printf %s {shlex.quote(content)} >{shlex.quote(path)}"
        for path, content in files.items()
    )
    own = f"{forwarder} {PLACE}/forward.js {port} {PLACE}/model.sock" if forwarder else ""
    return Template(_SCRIPT).substitute(
        exports=exports,
        skill_folders=" ".join(shlex.quote(folder) for folder in skill_folders) or '""',
        files=writes,
        own_forwarder=shlex.quote(own),
        place=PLACE,
        port=port,
        no_forwarder=NO_FORWARDER,
        prompt=shlex.quote(prompt),
        command=command,
        log_bytes=LOG_BYTES,
        log=LOG,
    )
