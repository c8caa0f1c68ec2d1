"""The simulated shell gives what bash gives, for every command that demonstrators issue."""

from __future__ import annotations

import random

import pytest

from arise.tasks.shellworld.episode import MAX_TURNS, SUBMIT, observation
from arise.tasks.shellworld.expert import Disposition, Expert
from arise.tasks.shellworld.folder import grade
from arise.tasks.shellworld.generate import MIXES, generate_tasks
from arise.tasks.shellworld.local_shell import LocalShell
from arise.tasks.shellworld.simulate import SimulatedShell
from arise.tasks.shellworld.spec import TaskSpec

SPECS = [
    spec
    for split in ("train", "unseen")
    for mix in MIXES
    for spec in generate_tasks(split, 50, 31, mix)
]


def disposition(rng: random.Random) -> Disposition:
    read, heed, verify, finish = (rng.random() < 0.6 for _ in range(4))
    return Disposition(
        read=read,
        heed=heed,
        verify=verify,
        finish=finish,
        waste=rng.choice((0.0, 0.5)),
        recheck=0.5,
    )


def test_it_answers_like_bash() -> None:
    rng = random.Random(5)
    with LocalShell() as shell:
        for spec in SPECS:
            folder, simulated = shell.open(spec), SimulatedShell(spec)
            commands = Expert(spec.plan, disposition(rng), rng).play()
            command = next(commands)
            for _ in range(MAX_TURNS):
                if command == SUBMIT:
                    break
                seen = shell.run(folder, command)
                assert observation(simulated.run(command)) == observation(seen), (spec.id, command)
                command = commands.send(seen)
            assert simulated.grade() == grade(spec, folder), spec.id
            shell.close_episode(folder)


def test_it_refuses_what_it_does_not_know() -> None:
    spec: TaskSpec = SPECS[0]
    with pytest.raises(ValueError, match=r"not a command of the demonstrators: 'python x\.py'"):
        SimulatedShell(spec).run("python x.py")
