"""`harness=external`: an agent program of somebody else, in the sandbox, against our endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from arise.agents.endpoint import EndpointSession, ForwardedEpisode
from arise.agents.external.script import LOG, NO_FORWARDER, NO_PROGRAM, PLACE, script
from arise.agents.harness import Harness
from arise.agents.proxied import CallBudgets, ProxiedEpisode
from arise.agents.proxy import MODEL_NAME, RecordingProxy
from arise.agents.recording import PolicySession
from arise.environments.base import Environment, ExecResult
from arise.errors import ConfigError, HarnessError
from arise.types import FinishReason, Task

Episode = ProxiedEpisode | ForwardedEpisode
_FORWARDERS = ("forward.py", "forward.js")
_LOG_EDGE_BYTES = 20_000
_LOG_TIMEOUT_S = 10.0
# The episode's own time limit, or a budget, ends the program; this only has to be longer.
_ENDLESS_S = 1e7


class ExternalAgent(Harness):
    """Runs an agent program in the sandbox and records what it asks the model.

    The program finds an OpenAI-compatible endpoint at a port of its sandbox, which leads to the
    recording proxy by a socket file. In `env` and `files` these words are replaced: `$base_url`,
    `$api_key`, `$model`, `$context_tokens`, `$output_tokens`, `$skills` (names of the benchmark's
    skills as a JSON list).

    Args:
        name: Of the program, for messages.
        command: Shell text that runs it, with the instruction on its standard input.
        env: Variables for it.
        files: Content by path of configuration files for it.
        mounts: Folder on this host by the place in the sandbox where it is mounted read-only: the
            program itself.
        skill_folders: Places where the program looks for the benchmark's skills, which stand at
            `/skills`.
        forwarder: Shell text that runs a JavaScript file by the program's own interpreter; `None`
            needs python3 or node in the sandbox.
        port: Port in the sandbox that leads to the model.
        max_turns: Most model calls in an episode.
        max_output_tokens: Most tokens in a reply.
        max_refused_calls: Refused calls that end an episode.
        first_call_timeout_s: Seconds after which a program that never called the model is given
            up.
        observation_role: Chat role of tool results where the program uses none.

    Raises:
        ConfigError: A value is out of range, or the program is not where `mounts` says.
    """

    def __init__(
        self,
        *,
        name: str,
        command: str,
        env: Mapping[str, str],
        files: Mapping[str, str],
        mounts: Mapping[str, str],
        skill_folders: Sequence[str],
        forwarder: str | None,
        port: int,
        max_turns: int,
        max_output_tokens: int,
        max_refused_calls: int,
        first_call_timeout_s: float,
        observation_role: str,
    ) -> None:
        for key, value in (
            ("max_turns", max_turns),
            ("max_output_tokens", max_output_tokens),
            ("max_refused_calls", max_refused_calls),
        ):
            if value < 1:
                raise ConfigError(f"harness.{key} = {value} must be at least 1")
        if not first_call_timeout_s > 0:
            raise ConfigError(
                f"harness.first_call_timeout_s = {first_call_timeout_s} must be above 0"
            )
        if not command.strip():
            raise ConfigError("harness.command is empty; it must run the agent program")
        self.observation_role = observation_role
        self._name = name
        self._command = command
        self._env = dict(env)
        self._files = dict(files)
        self._mounts = tuple((_placed(source, name), place) for place, source in mounts.items())
        self._skill_folders = tuple(skill_folders)
        self._forwarder = forwarder
        self._port = port
        self._budgets = CallBudgets(
            max_turns=max_turns,
            max_output_tokens=max_output_tokens,
            max_refused_calls=max_refused_calls,
        )
        self._first_call_timeout_s = first_call_timeout_s
        self._proxy: RecordingProxy | None = None

    async def start(self) -> None:
        """Start the proxy, once."""
        if self._proxy is None:
            self._proxy = proxy = RecordingProxy()
            await proxy.start()
            assert proxy.folder is not None
            for file in _FORWARDERS:
                shutil.copyfile(Path(__file__).with_name(file), proxy.folder / file)
                (proxy.folder / file).chmod(0o644)

    async def stop(self) -> None:
        """Stop the proxy."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.stop()

    def outfit(self, task: Task) -> Task:
        """The task with the program and the model's socket mounted."""
        assert self._proxy is not None
        mounts = (
            *task.environment.mounts,
            *((str(path), place) for path, place in self._mounts),
            (str(self._proxy.folder), PLACE),
        )
        return replace(task, environment=replace(task.environment, mounts=mounts))

    async def run(
        self, task: Task, session: PolicySession, environment: Environment
    ) -> FinishReason:
        """Run the program until it ends, uses up a budget, or never calls the model."""
        assert self._proxy is not None
        episode = (
            ForwardedEpisode(session, self._budgets)
            if isinstance(session, EndpointSession)
            else ProxiedEpisode(session, self._budgets)
        )
        with self._proxy.serving(episode) as key:
            command = self._script(task, session, key)
            running = asyncio.create_task(environment.exec(command, timeout_s=_ENDLESS_S))
            try:
                result = await self._until_over(running, episode, task)
            finally:
                # Nothing may use the sandbox after this, not even to be interrupted.
                running.cancel()
                await asyncio.wait([running])
                await self._keep_log(session, environment)
        return self._judge(result, episode)

    async def _until_over(
        self, running: asyncio.Task[ExecResult], episode: Episode, task: Task
    ) -> ExecResult | None:
        """The program's result; `None` if it was ended for a budget or an error.

        Raises:
            HarnessError: It does not call the model.
        """
        over = asyncio.create_task(episode.over.wait())
        called = asyncio.create_task(episode.called.wait())
        patience_s = self._first_call_timeout_s
        if task.agent_timeout_s is not None:
            patience_s = min(patience_s, 0.9 * task.agent_timeout_s)
        try:
            await asyncio.wait(
                [running, called, over], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not running.done() and not called.done():
                raise HarnessError(
                    f"{self._name} did not call the model within {patience_s:g} s "
                    "(harness.first_call_timeout_s)"
                )
            await asyncio.wait([running, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            called.cancel()
        return running.result() if running.done() else None

    def _judge(self, result: ExecResult | None, episode: Episode) -> FinishReason:
        """Why the episode ended; raises if it is no trajectory."""
        session = episode.session
        if episode.error is not None:
            raise episode.error
        session.exit_code = result.exit_code if result is not None else None
        if episode.num_calls:
            last = session.turns[-1].finish_reason
            cut = FinishReason.OUTPUT_LIMIT if last == "length" else FinishReason.SUBMITTED
            return episode.limit or cut
        if episode.limit is not None:
            return episode.limit
        tail = " ".join((session.log or (result.output if result else "")).split())[-300:]
        if session.exit_code == NO_PROGRAM:
            raise HarnessError(
                f"{self._name} was not found in the sandbox (harness.mounts, harness.command): "
                f"{tail}"
            )
        if session.exit_code == NO_FORWARDER:
            raise HarnessError(f"{self._name} cannot reach the model: {tail}")
        raise HarnessError(
            f"{self._name} ended with exit code {session.exit_code} and got no answer of the "
            f"model ({session.num_refused_calls} calls refused); its log ends: {tail or '(none)'}"
        )

    async def _keep_log(self, session: PolicySession, environment: Environment) -> None:
        """Head and tail of what the program printed."""
        command = (
            f"( [ -f {LOG} ] && {{ head -c {_LOG_EDGE_BYTES} {LOG}; "
            f"tail -c +{_LOG_EDGE_BYTES + 1} {LOG} | tail -c {_LOG_EDGE_BYTES}; }} )"
        )
        # The episode's time limit may be what ended the program: then this has to be short.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_LOG_TIMEOUT_S):
                session.log = (await environment.exec(command, timeout_s=_LOG_TIMEOUT_S)).output

    def _script(self, task: Task, session: PolicySession, key: str) -> str:
        skills = task.environment.skills
        words = {
            "base_url": f"http://127.0.0.1:{self._port}/v1",
            "api_key": key,
            "model": MODEL_NAME,
            "context_tokens": str(session.context_tokens),
            "output_tokens": str(min(self._budgets.max_output_tokens, session.context_tokens)),
            "skills": json.dumps(sorted(p.name for p in skills.iterdir()) if skills else []),
        }
        return script(
            command=Template(self._command).safe_substitute(words),
            prompt=task.instruction,
            env={name: Template(text).safe_substitute(words) for name, text in self._env.items()},
            files={
                path: Template(text).safe_substitute(words) for path, text in self._files.items()
            },
            skill_folders=self._skill_folders,
            forwarder=self._forwarder,
            port=self._port,
        )


def _placed(source: str, name: str) -> Path:
    """A program's folder on this host.

    Raises:
        ConfigError: It is not there, or only its owner can reach it.
    """
    path = Path(source).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(
            f"harness.mounts: {name} is not installed at {str(path)!r}; `make {name}` installs "
            "kilo and mini-swe-agent, or give the folder of the program"
        )
    closed = next((p for p in (path, *path.parents) if not p.stat().st_mode & 0o001), None)
    if closed is not None:
        raise ConfigError(
            f"harness.mounts: the user of a sandbox cannot reach {str(path)!r}, because {closed} "
            "is closed to others; install the program elsewhere"
        )
    return path
