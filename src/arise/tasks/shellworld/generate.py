"""Generates the suite: `python -m arise.tasks.shellworld.generate --split train --count 512`.

A task is a function of (split, mix, seed, index) alone, so the same call always writes the same
bytes and a longer suite begins with the shorter one. Train and held-out tasks come from the same
families with other draws; the unseen split uses families that training never sees.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from arise.errors import ConfigError
from arise.tasks.shellworld.families import FAMILIES, Family
from arise.tasks.shellworld.families.base import Needs, need_sets
from arise.tasks.shellworld.folder import write
from arise.tasks.shellworld.spec import TaskSpec

SPLITS = ("train", "heldout", "unseen")

MIXES: Mapping[str, Mapping[str, float]] = {
    "conjunctive": {
        "-": 0.16,
        "F": 0.05,
        "RF": 0.04,
        "RH": 0.04,
        "RHF": 0.02,
        "RV": 0.2,
        "HV": 0.18,
        "RHV": 0.18,
        "RVF": 0.07,
        "HVF": 0.06,
    },
    "single": {"-": 0.2, "R": 0.2, "H": 0.2, "V": 0.2, "F": 0.2},
}
"""Share of each set of needs (Read, Heed, Verify, Finish; `-` is none) by mix. Apart from the last
step, which the instruction shows, the conjunctive mix has no task with a single need: a lucky
success would teach outcome-only training the behaviour, however rare it is."""


def _supported(family: Family, mix: str) -> tuple[Needs, ...]:
    return family.mixed if mix == "conjunctive" else family.single


def generate_tasks(split: str, count: int, seed: int, mix: str = "conjunctive") -> list[TaskSpec]:
    """Tasks in memory.

    Args:
        split: `"train"`, `"heldout"` or `"unseen"`.
        count: How many.
        seed: Any integer.
        mix: `"conjunctive"` or `"single"`.

    Raises:
        ConfigError: Unknown split or mix, or a negative count.
    """
    if split not in SPLITS:
        raise ConfigError(f"--split {split!r} is not one of {', '.join(SPLITS)}")
    if mix not in MIXES:
        raise ConfigError(f"--mix {mix!r} is not one of {', '.join(MIXES)}")
    if count < 0:
        raise ConfigError(f"--count {count} must not be negative")
    families = [family for family in FAMILIES if family.unseen == (split == "unseen")]
    choices: list[tuple[Needs, list[Family]]] = []
    weights: list[float] = []
    for initials, weight in MIXES[mix].items():
        (needs,) = need_sets(initials)
        able = [family for family in families if needs in _supported(family, mix)]
        if able:
            choices.append((needs, able))
            weights.append(weight)
    return [_draw(split, mix, seed, index, choices, weights) for index in range(count)]


def _draw(
    split: str,
    mix: str,
    seed: int,
    index: int,
    choices: Sequence[tuple[Needs, list[Family]]],
    weights: Sequence[float],
) -> TaskSpec:
    rng = random.Random(f"{split}/{mix}/{seed}/{index}")
    needs, able = rng.choices(choices, weights)[0]
    family = rng.choice(able)
    label = "" if mix == "conjunctive" else f"{mix}-"
    return TaskSpec(
        id=f"{family.name}-{split}-{label}{seed}-{index:05d}",
        family=family.name,
        domain=family.domain,
        tags=family.tags,
        needs=needs,
        draft=family.make(rng, needs),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a suite to a folder and say what is in it."""
    parser = argparse.ArgumentParser(description="Generate shell tasks in the Harbor format.")
    parser.add_argument("--split", choices=SPLITS, default="train", help="which families and draws")
    parser.add_argument("--count", type=int, default=512, help="number of tasks")
    parser.add_argument("--seed", type=int, default=0, help="any integer")
    parser.add_argument("--mix", choices=tuple(MIXES), default="conjunctive", help="kinds of needs")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    options = parser.parse_args(arguments)
    try:
        specs = generate_tasks(options.split, options.count, options.seed, options.mix)
    except ConfigError as error:
        parser.error(str(error))
    for spec in specs:
        write(spec, options.out / spec.id)
    families = sorted({spec.family for spec in specs})
    print(f"{len(specs)} tasks of {len(families)} families in {options.out}")


if __name__ == "__main__":
    main()
