"""Plays the scripted expert in a local shell."""

from __future__ import annotations

import random
from collections.abc import Sequence

from arise.tasks.shellworld.behaviours import Step
from arise.tasks.shellworld.episode import MAX_TURNS, SUBMIT, observation
from arise.tasks.shellworld.expert import Disposition, Expert
from arise.tasks.shellworld.folder import grade
from arise.tasks.shellworld.local_shell import LocalShell
from arise.tasks.shellworld.spec import TaskSpec


def play(
    shell: LocalShell, spec: TaskSpec, disposition: Disposition, seed: int = 0
) -> tuple[float, list[Step], bool]:
    """Reward, trace, and whether the expert submitted within the turn limit."""
    folder = shell.open(spec)
    commands = Expert(spec.plan, disposition, random.Random(seed)).play()
    command, trace = next(commands), []
    for _ in range(MAX_TURNS):
        if command == SUBMIT:
            break
        seen = shell.run(folder, command)
        trace.append(Step(command=command, observation=observation(seen)))
        command = commands.send(seen)
    reward = grade(spec, folder)
    shell.close_episode(folder)
    return reward, trace, command == SUBMIT


def reward_of(shell: LocalShell, spec: TaskSpec, commands: Sequence[str]) -> float:
    """Reward after the given commands."""
    folder = shell.open(spec)
    for command in commands:
        shell.run(folder, command)
    reward = grade(spec, folder)
    shell.close_episode(folder)
    return reward
