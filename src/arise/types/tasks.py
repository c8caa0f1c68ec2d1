"""Tasks as they are on disk: what to do, in which environment, graded how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthcheck:
    """A command that must succeed in the sandbox before the agent starts.

    Attributes:
        command: Shell command.
        interval_s: Pause between attempts, in seconds.
        timeout_s: Limit on one attempt, in seconds.
        start_period_s: Time in which failures do not count, in seconds.
        start_interval_s: Pause between attempts in that time, in seconds.
        retries: Attempts after that time.
    """

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What a task asks of its sandbox. `None` means no limit or not given.

    Attributes:
        context: Folder with the Dockerfile and its files (`environment/` of a Harbor task).
        docker_image: Ready image to use instead of building.
        workdir: Where commands start; `None` leaves it to the Dockerfile.
        env: Environment variables of the agent's shell.
        cpus: Number of CPUs.
        memory_mb: Memory limit in MiB.
        storage_mb: Disk limit in MiB.
        gpus: Number of GPUs.
        network: Whether the agent may reach the network; `None` if the task does not say.
        tests_network: The same of the tests; `None` if it is as the agent's.
        build_timeout_s: Limit on building the image, in seconds.
        dockerfile: Name of the Dockerfile in `context`.
        exclude: Entries of `context` that are no part of it (tests and solution beside it).
        user: User of the agent's commands; `None` leaves it to the image.
        skills: Folder of the benchmark's own skills, put at `/skills` for the agent to read.
        skills_dir: Where the image has skills of its own; `/skills` leads there.
        healthcheck: What must succeed before the agent starts; `None` if nothing.
        unsupported: Why no kind of sandbox here can run the task; empty if that is not known.
        mounts: (path on this host, absolute path in the sandbox) of folders that the sandbox sees
            read-only; an agent program and the socket of its model come that way.
    """

    context: Path | None = None
    docker_image: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    network: bool | None = None
    tests_network: bool | None = None
    build_timeout_s: float = 600.0
    dockerfile: str = "Dockerfile"
    exclude: tuple[str, ...] = ()
    user: str | None = None
    skills: Path | None = None
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    unsupported: str = ""
    mounts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a task in several steps; all of them share one sandbox.

    Attributes:
        name: Its folder below `steps/`.
        instruction: What the agent is asked to do in this step.
        tests: Folders whose files are put at `/tests`, later ones over earlier ones.
        workdir: Folder that is put into the working directory before the step.
        solution: Folder of the step's reference solution.
        min_reward: The episode ends after this step if its reward is lower.
        agent_timeout_s: Wall-clock limit of the agent in this step; `None` as the task's.
        verifier_timeout_s: Wall-clock limit of grading this step.
        verifier_env: Environment variables of the step's tests.
        healthcheck: What must succeed before the agent starts this step; `None` if nothing.
    """

    name: str
    instruction: str
    tests: tuple[Path, ...]
    workdir: Path | None = None
    solution: Path | None = None
    min_reward: float | None = None
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One executable task: an instruction, a place to work in, and tests that grade the result.

    Attributes:
        id: Unique in the corpus and stable between runs; evidence is kept by it.
        instruction: What the agent is asked to do.
        path: Folder the task was read from.
        tests: Folder that is uploaded to `/tests` after the agent has finished.
        solution: Folder of the reference solution; never shown to agent, judge or reflection.
        environment: What the sandbox must offer.
        tags: Task types d (several are allowed).
        domain: Reporting group.
        agent_timeout_s: Wall-clock limit of an episode; `None` leaves it to the harness.
        verifier_timeout_s: Wall-clock limit of grading.
        verifier_env: Environment variables of the tests.
        verifier_user: User of the tests; `None` leaves it to the image.
        is_graded_apart: Whether the task asks to be graded in a second container.
        artifacts: Absolute paths, besides the working directory, that a second container gets.
        extra_tests: Folders put at `/tests` besides `tests`, under its files.
        solution_env: Environment variables of the reference solution.
        steps: The steps of a multi-step task, in order; empty for an ordinary one. Then
            `instruction` is all of them and `tests` are those of the last one.
        step_reward: How a multi-step task's reward follows from its steps': `"mean"` over the
            steps that were graded, or `"final"`, the last one of them.
        prior: Messages of an earlier conversation that the agent goes on from.
    """

    id: str
    instruction: str
    path: Path
    tests: Path
    solution: Path | None = None
    environment: EnvironmentSpec = field(default_factory=EnvironmentSpec)
    tags: tuple[str, ...] = ()
    domain: str | None = None
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    verifier_user: str | None = None
    is_graded_apart: bool = False
    artifacts: tuple[str, ...] = ()
    extra_tests: tuple[Path, ...] = ()
    solution_env: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    step_reward: str = "mean"
    prior: tuple[Mapping[str, str], ...] = ()
