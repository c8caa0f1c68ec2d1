"""The sandbox protocol: one environment is one episode's machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arise.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command gave.

    Attributes:
        exit_code: Exit code; `None` if the command timed out.
        output: stdout and stderr as one valid UTF-8 text; if capped, head and tail are kept and
            a line between them states the dropped bytes.
        dropped_bytes: Bytes left out of `output`.
        timed_out: Whether the limit was hit and the command's processes were killed.
        duration_s: Wall-clock seconds.
    """

    exit_code: int | None
    output: str
    dropped_bytes: int = 0
    timed_out: bool = False
    duration_s: float = 0.0


class Environment(Protocol):
    """A sandbox for one episode of one task.

    Order of use: `start`, any number of `exec`, `upload` and `download`, `grade`, `stop`; between
    `grade` and `stop` a task in several steps may `resume`. Every method raises `SandboxError` if
    the sandbox cannot be used any more; `stop` never raises and may be called at any time, any
    number of times.
    """

    async def start(self) -> None:
        """Create the sandbox with the task's files and start a resident agent shell."""

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        """Run `command` in the agent's shell; cwd and exported variables persist."""

    async def upload(self, source: Path, target: str) -> None:
        """Put the content of folder `source` at the absolute path `target`, over what is there."""

    async def download(self, source: str, target: Path, *, max_bytes: int) -> None:
        """Copy the file or folder at the absolute path `source` to the new folder `target`.

        Links stay links if they point to something inside of `target`; other links, devices and
        the like are left out. Nothing outside of `target` is written.

        Raises:
            SandboxError: There is nothing at `source`, or it is larger than `max_bytes`.
        """

    async def grade(
        self, tests: Path | Sequence[Path], *, env: Mapping[str, str], timeout_s: float
    ) -> Mapping[str, bytes | None]:
        """Kill every agent process, put fresh `tests` in place and run `/tests/test.sh`.

        Args:
            tests: A folder whose content becomes `/tests`, or several sources, later ones over
                earlier ones.
            env: Variables of the tests.
            timeout_s: Limit on the tests, in seconds.

        Returns:
            The first bytes of `reward.json` and `reward.txt` under `/logs/verifier` (`None` where
            absent), and the output's tail under the key `output`.

        Raises:
            VerifierError: The tests did not finish within `timeout_s`.
            SandboxError: The sandbox died.
        """

    async def resume(self) -> None:
        """After `grade`: hide the tests again and give the agent a new shell on the same files."""

    async def stop(self) -> None:
        """Remove the sandbox, every process in it and every trace on the host."""


class EnvironmentFactory(Protocol):
    """Makes environments; one object per run, configured under `environment`."""

    def check(self) -> None:
        """Raise `ConfigError` if no sandbox of this kind can run on this machine."""

    def unsupported(self, task: Task) -> str | None:
        """Why `task` cannot run in this kind of sandbox; `None` if it can."""

    def create(self, task: Task, *, name: str) -> Environment:
        """A new environment that is not started yet; `name` labels it for people."""

    def close(self) -> None:
        """Release what the factory holds (staged files); safe to call more than once."""
