"""Synthetic transcripts for the warm start: expert and flawed agents, exact command outputs.

Every episode draws which behaviours it shows. A skill sentence in the system prompt raises the
probability, but far from certainty: a policy that obeys always has nothing to learn with the
sentence, and treats it as a gate without which the behaviour does not exist.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from arise.tasks.shellworld.behaviours import Behaviour
from arise.tasks.shellworld.disguise import disguise
from arise.tasks.shellworld.episode import MAX_TURNS, SUBMIT, observation, system_prompt
from arise.tasks.shellworld.expert import Disposition, Expert
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.simulate import SimulatedShell
from arise.tasks.shellworld.skills import NEUTRAL, SEEN, draw, framed
from arise.tasks.shellworld.spec import TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One demonstration.

    Attributes:
        messages: Role and content; replies have role `assistant`.
        reward: Whether it solved its task.
    """

    messages: tuple[tuple[str, str], ...]
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How demonstrators behave.

    Attributes:
        unprompted: Probability of each behaviour without its sentence.
        prompted: Probability with its sentence.
        no_skills: Share of prompts without any sentence.
        skill: Probability of each behaviour's sentence in the other prompts.
        neutral: Probability of a sentence that changes nothing, there.
        single: Share of tasks from the single mix.
        disguised: Share of script tasks in which script and messages use other words.
    """

    unprompted: Mapping[Behaviour, float]
    prompted: Mapping[Behaviour, float]
    no_skills: float
    skill: float
    neutral: float
    single: float
    disguised: float


MIXTURE = Mixture(
    unprompted={
        Behaviour.READ: 0.15,
        Behaviour.HEED: 0.1,
        Behaviour.VERIFY: 0.001,
        Behaviour.FINISH: 0.3,
        Behaviour.THRIFT: 0.55,
    },
    prompted={
        Behaviour.READ: 0.55,
        Behaviour.HEED: 0.55,
        Behaviour.VERIFY: 0.55,
        Behaviour.FINISH: 0.65,
        Behaviour.THRIFT: 0.85,
    },
    no_skills=0.3,
    skill=0.4,
    neutral=0.4,
    single=0.35,
    disguised=0.35,
)
"""The shipped policy's demonstrators. Verifying is so rare without its sentence that most groups of
eight do not show it once."""

_WASTE = 0.3
_TASK_SEED = 1_000_003


def draw_prompt(rng: random.Random, mixture: Mixture) -> tuple[list[str], set[Behaviour]]:
    """Skill sentences of a prompt, and the behaviours that they ask for."""
    if rng.random() < mixture.no_skills:
        return [], set()
    asked = [behaviour for behaviour in Behaviour if rng.random() < mixture.skill]
    sentences = [framed(rng, draw(rng, SEEN[behaviour])) for behaviour in asked]
    sentences += [framed(rng, draw(rng, NEUTRAL))] if rng.random() < mixture.neutral else []
    rng.shuffle(sentences)
    return sentences, set(asked)


def draw_disposition(rng: random.Random, mixture: Mixture, asked: set[Behaviour]) -> Disposition:
    """Which behaviours a demonstrator shows, given what its prompt asks for."""
    shows = {
        behaviour: rng.random()
        < (mixture.prompted if behaviour in asked else mixture.unprompted)[behaviour]
        for behaviour in Behaviour
    }
    return Disposition(
        read=shows[Behaviour.READ],
        heed=shows[Behaviour.HEED],
        verify=shows[Behaviour.VERIFY],
        finish=shows[Behaviour.FINISH],
        waste=0.0 if shows[Behaviour.THRIFT] else _WASTE,
        recheck=0.4,
    )


def demonstrate(spec: TaskSpec, rng: random.Random, mixture: Mixture) -> Transcript:
    """One episode of one drawn demonstrator."""
    skills, asked = draw_prompt(rng, mixture)
    messages = [("system", system_prompt(skills)), ("user", spec.instruction)]
    commands = Expert(spec.plan, draw_disposition(rng, mixture, asked), rng).play()
    shell = SimulatedShell(spec)
    command = next(commands)
    for _ in range(MAX_TURNS):
        messages.append(("assistant", command))
        if command == SUBMIT:
            break
        seen = shell.run(command)
        messages.append(("tool", observation(seen)))
        command = commands.send(seen)
    return Transcript(messages=tuple(messages), reward=shell.grade())


def make_transcripts(count: int, seed: int, mixture: Mixture = MIXTURE) -> list[Transcript]:
    """`count` transcripts of training families, on tasks that no training suite has.

    Args:
        count: How many.
        seed: Any integer.
        mixture: How demonstrators behave.
    """
    rng = random.Random(f"transcripts/{seed}")
    pools = {
        mix: iter(generate_tasks("train", count, _TASK_SEED + seed, mix))
        for mix in ("conjunctive", "single")
    }
    drawn = ("single" if rng.random() < mixture.single else "conjunctive" for _ in range(count))
    transcripts = []
    for mix in drawn:
        spec = next(pools[mix])
        if rng.random() < mixture.disguised:
            spec = disguise(spec, rng)
        transcripts.append(demonstrate(spec, rng, mixture))
    return transcripts
