"""What runs inside of a container: the first process, the agent's shell, the tests, the killer.

All of them are bash, which every image of a task has, since its tests are a bash script. An agent
that is root may replace it: it then spoils its own commands, and grading puts the image's
programs back.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from arise.environments.resident import exports, runner

BASH = ("/bin/bash", "--norc", "--noprofile", "-c")
LOG_FOLDERS = ("logs", "logs/agent", "logs/artifacts", "logs/verifier")
# Whatever an agent put there is gone before tests run, and what tests put there afterwards.
FRESH_FOLDERS = ("tests", "logs/verifier")
_STATE = "/dev/shm/.shell-state"

# Ends with its input, which the trainer holds: a dead trainer leaves no running container.
FIRST_PROCESS = (*BASH, "while IFS= read -r -n 4096 _; do :; done")

# The agent's commands are the first to be killed for memory, and its shell before the container's
# first process.
AGENT_SHELL = rf"""
exec 2>/dev/null
trap : INT QUIT TERM HUP
echo 300 2>/dev/null >/proc/self/oom_score_adj
IFS= read -r -d '' nonce && IFS= read -r -d '' workdir
cd -- "$workdir" || cd /
rm -f {_STATE}
runner={shlex.quote("echo 500 2>/dev/null >/proc/self/oom_score_adj; " + runner(_STATE))}
printf '\0%s %s\0' "$nonce" "$$"
while IFS= read -r -d '' nonce && IFS= read -r -d '' command; do
  /bin/bash --norc --noprofile -c "$runner" bash </dev/null 2>&1 5< <(printf %s "$command")
  printf '\0%s %s\0' "$nonce" "$?"
done
"""

# Kills what the running command started: every process that is not older than the shell's child.
# Stopped first, because a stopped process cannot fork and thus outrun this loop.
KILLER = r"""
shell=$1
scan() {
  fresh=(); since=
  for file in /proc/[0-9]*/stat; do
    IFS= read -r line 2>/dev/null <"$file" || continue
    pid=${line%% *} rest=${line##*) }; set -- $rest
    [[ $1 == Z || $pid == $$ ]] && continue
    [[ $2 == "$shell" ]] && { [[ -z $since ]] || ((${20} < since)); } && since=${20}
    fresh+=("$pid:${20}")
  done
}
begin=
for round in {1..200}; do
  scan
  [[ -z $begin ]] && begin=$since
  [[ -z $begin ]] && exit 0
  targets=()
  for entry in "${fresh[@]}"; do
    pid=${entry%:*}
    ((${entry#*:} >= begin)) && [[ $pid != "$shell" && $pid != 1 ]] && targets+=("$pid")
  done
  ((${#targets[@]})) || exit 0
  kill -STOP "${targets[@]}" 2>/dev/null
  kill -KILL "${targets[@]}" 2>/dev/null
done
exit 1
"""

_TESTS_ENV: Mapping[str, str] = {
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": "/tmp/.tests/home",
    "TMPDIR": "/tmp/.tests/tmp",
}


def agent_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of the agent's shell; the image's own are there without us.

    Raises:
        SandboxError: A name is not a shell variable's, or a value holds NUL.
    """
    variables = {"TERM": "dumb", "LANG": "C.UTF-8", **env}
    exports(variables)
    return variables


def tests_script(*, workdir: str, env: Mapping[str, str]) -> str:
    """What runs the tests; their exit code means nothing.

    A fresh home hides the agent's dot files and user packages; it is named by no file of the
    agent, since the folder is removed first.

    Args:
        workdir: Where the tests start; `/` if the agent removed it.
        env: The task's own variables for its tests, which win.
    """
    return (
        "IFS= read -r -d '' nonce\n"
        f"{exports({**_TESTS_ENV, **env})}"
        "rm -rf /tmp/.tests; mkdir -p /tmp/.tests/home /tmp/.tests/tmp\n"
        f"cd -- {shlex.quote(workdir)} || cd /\n"
        "/bin/bash /tests/test.sh </dev/null 2>&1\n"
        """printf '\\0%s %s\\0' "$nonce" "$?"\n"""
    )
