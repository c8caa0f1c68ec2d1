"""Scripts and texts of the sessions: the agent's resident shell, and the run of the tests.

The resident shell never evaluates what an agent wrote: each command gets a shell of its own,
which restores and saves the exported variables and the working directory. An agent can thus
break its own state, but not the loop. All script variables are unexported and die with `exec`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from arise.errors import SandboxError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AGENT_ENV: Mapping[str, str] = {
    "PATH": PATH,
    "HOME": "/root",
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
# Nothing the agent can set reaches the tests: a fresh home hides its dot files and user packages,
# and a fresh folder for temporary files outlives a full disk. Python still imports from the
# working directory, because most tests import what the agent wrote.
TESTS_ENV: Mapping[str, str] = {
    **AGENT_ENV,
    "HOME": "/run/home",
    "TMPDIR": "/run/tmp",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_STATE = "/run/shell-state"


def runner(state: str) -> str:
    """What each command's own shell runs; it finds the command in file 5.

    On one line, so that bash numbers the lines of the agent's command from 1.

    Args:
        state: File that holds exported variables and working directory between commands.
    """
    return (
        f". {state} 2>/dev/null; "
        'IFS= read -r -d "" -u 5 __arise_command; exec 5<&-; '
        f"""trap '{{ export -p; printf "cd -- %q\\n" "$PWD"; }} >{state} 2>/dev/null' EXIT; """
        'eval "unset -v __arise_command; $__arise_command"'
    )


_AGENT = r"""
trap : INT QUIT TERM HUP
printf '%s ready\n' "$epoch" >&4
while IFS=' ' read -r -u 3 wanted nonce; do
  [[ $wanted == "$epoch" ]] || continue
  /usr/bin/bash --norc --noprofile -c "$runner" bash </dev/null 2>&1 3<&- 4>&-
  printf '%s %s\n' "$nonce" "$?" >&4
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Kernel limits of every process of a session.

    Attributes:
        max_processes: Processes and threads of a session; set in its own user namespace, so it
            is not shared with other sandboxes.
        data_bytes: Private memory of one process, a backstop behind the memory watchdog.
        file_bytes: Size of one file.
    """

    max_processes: int
    data_bytes: int
    file_bytes: int

    def script(self) -> str:
        """The limits as shell text; they can be lowered but not raised afterwards."""
        return (
            f"ulimit -c 0 -n 1024 -u {self.max_processes} -d {self.data_bytes // 1024} "
            f"-f {self.file_bytes // 1024}\n"
        )


def agent_script(*, epoch: str, workdir: str, env: Mapping[str, str], limits: ProcessLimits) -> str:
    """What the agent's session runs: limits, variables, working directory, then the loop.

    Args:
        epoch: Names this session; a command addressed to an earlier one is skipped.
        workdir: Where the first command starts.
        env: Variables besides `AGENT_ENV`, which they override.
        limits: Kernel limits.
    """
    return (
        f"exec 2>/dev/null\n{limits.script()}{exports({**AGENT_ENV, **env})}"
        f"cd -- {shlex.quote(workdir)}\nepoch={epoch} "
        f"runner={shlex.quote(runner(_STATE))}\n{_AGENT}"
    )


def tests_script(
    *,
    workdir: str,
    container_env: Mapping[str, str],
    env: Mapping[str, str],
    limits: ProcessLimits,
) -> str:
    """What the session of the tests runs; their exit code means nothing.

    Bash stays the session's first process, so that a test may kill its own process group, and
    background processes of the tests end with it.

    Args:
        workdir: Where the tests start; `/` if the agent removed it.
        container_env: Variables of the task's build, overridden by `TESTS_ENV`.
        env: The task's own variables for its tests, which win.
        limits: Kernel limits.
    """
    variables = {**container_env, **TESTS_ENV, **env}
    return (
        f"exec 2>&1\n{limits.script()}{exports(variables)}mkdir -p /run/home /run/tmp\n"
        f"cd -- {shlex.quote(workdir)} || cd /\n/usr/bin/bash /tests/test.sh\nexit $?\n"
    )


def exports(env: Mapping[str, str]) -> str:
    """Shell text that exports `env`.

    Raises:
        SandboxError: A name is not a shell variable's, or a value holds NUL.
    """
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise SandboxError(f"environment.env: {name!r} cannot be a variable of a shell")
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
