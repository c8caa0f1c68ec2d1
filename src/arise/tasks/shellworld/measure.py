"""Measures the policy: `python -m arise.tasks.shellworld.measure [--policy FOLDER]`.

Prints, for sampled episodes at temperature 1 on held-out tasks: pass rates, commands and copying,
behaviour rates with no, seen and held-back skill sentences, and what sentences open in groups of
eight in which nobody succeeds.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from arise.tasks.shellworld import figures
from arise.tasks.shellworld.behaviours import Behaviour
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.local_shell import LocalShell
from arise.tasks.shellworld.rules_texts import REQUIREMENTS
from arise.tasks.shellworld.sampling import Episode, Sampler, play_all
from arise.tasks.shellworld.skills import HELD_BACK, NEUTRAL, SEEN, draw
from arise.tasks.shellworld.spec import Need, TaskSpec
from arise.tasks.shellworld.tokenizer import load_tokenizer

REFLECTED = {
    found.behaviour: (found.skill, *(text for mode in found.modes for text in mode.ladder))
    for found in REQUIREMENTS
}
"""Skill texts of the offline reflection; the warm start has none of them either."""
POLICY = Path(__file__).parent / "policy"
_SEED = 77
_FITTING = {
    Need.READ: Behaviour.READ,
    Need.HEED: Behaviour.HEED,
    Need.VERIFY: Behaviour.VERIFY,
    Need.FINISH: Behaviour.FINISH,
}


def load_policy(folder: Path) -> tuple[LlamaForCausalLM, object]:
    """Model in float32 and tokenizer."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), load_tokenizer(folder)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        cells = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


class Measurement:
    """All tables for one policy.

    Args:
        sampler: Plays its episodes.
        episodes: Episodes per figure.
    """

    def __init__(self, sampler: Sampler, episodes: int) -> None:
        self._sampler = sampler
        self._count = episodes

    def _play(
        self, split: str, mix: str, count: int, banks: Sequence[tuple[str, ...]] = ()
    ) -> list[Episode]:
        rng = random.Random(f"{split}/{mix}/{len(banks)}")
        specs = generate_tasks(split, count, _SEED, mix)
        return play_all(
            self._sampler, [(spec, [draw(rng, bank) for bank in banks]) for spec in specs]
        )

    def start(self) -> tuple[str, list[Episode]]:
        """Pass rates, form and copying without skills."""
        played = {
            (split, mix): self._play(split, mix, self._count)
            for split in ("heldout", "unseen")
            for mix in ("conjunctive", "single")
        }
        rows = [
            (split, mix, len(found), figures.pass_rate(found), figures.well_formed(found),
             figures.names_copied(found), figures.values_copied(found))
            for (split, mix), found in played.items()
        ]  # fmt: skip
        header = ("split", "mix", "episodes", "pass", "well-formed", "names", "values")
        base = played["heldout", "conjunctive"]
        families = figures.pass_by_family(base) | figures.pass_by_family(
            played["unseen", "conjunctive"]
        )
        by_family = _table(
            ("family", "episodes", "pass"),
            [(name, count, rate) for name, (count, rate) in families.items()],
        )
        return _table(header, rows) + "\n" + by_family, base

    def steering(self, base: Sequence[Episode]) -> str:
        """Behaviour rates by kind of sentence, and the use of revealed words with all sentences."""
        rows = []
        count = self._count // 2
        neutral = self._play("heldout", "conjunctive", count, [NEUTRAL])
        every = self._play("heldout", "conjunctive", count, [SEEN[b] for b in Behaviour])
        unseen = self._play("heldout", "conjunctive", count, [HELD_BACK[b] for b in Behaviour])
        for behaviour in Behaviour:
            alone = [
                self._play("heldout", "conjunctive", count, [bank[behaviour]])
                for bank in (SEEN, HELD_BACK, REFLECTED)
            ]
            sets = (base, neutral, *alone, every, unseen)
            rows.append((behaviour, *(figures.behaviour_rate(s, behaviour) for s in sets)))
        rows.append(
            ("*pass*", figures.pass_rate(base), figures.pass_rate(neutral), "", "", "",
             figures.pass_rate(every), figures.pass_rate(unseen))
        )  # fmt: skip
        header = (
            "behaviour", "none", "neutral", "seen", "held back", "reflection's", "all seen",
            "all held back",
        )  # fmt: skip
        uses = [
            (name, *counted) for name, counted in figures.revealed_used([*every, *unseen]).items()
        ]
        used = _table(("word named by", "episodes", "used in a later command"), uses)
        return _table(header, rows) + "\n" + used

    def groups(self, size: int = 8) -> str:
        """Groups of eight by need: in how many nobody succeeds, without and with sentences."""
        specs = generate_tasks("train", self._count, _SEED + 1)
        by_needs: dict[frozenset[Need], list[TaskSpec]] = {}
        for spec in specs:
            by_needs.setdefault(spec.needs, []).append(spec)
        rows = []
        for needs in sorted(by_needs, key=lambda found: (len(found), sorted(found))):
            chosen = by_needs[needs][: max(4, self._count // 40)]
            fitting = [SEEN[_FITTING[need]] for need in sorted(needs)]
            plain, skilled = (self._group(chosen, size, banks) for banks in ([], fitting))
            shown = [
                figures.mean(
                    float(any(episode.behaviours[_FITTING[need]] for episode in group))
                    for group in plain
                )
                for need in sorted(needs)
            ]
            rows.append(
                ("+".join(sorted(needs)) or "none", len(chosen), figures.all_fail_share(plain),
                 figures.all_fail_share(skilled), " ".join(f"{value:.2f}" for value in shown))
            )  # fmt: skip
        header = ("needs", "groups", "all fail", "all fail, with sentences", "behaviour seen")
        return _table(header, rows)

    def _group(
        self, specs: Sequence[TaskSpec], size: int, banks: Sequence[tuple[str, ...]]
    ) -> list[list[Episode]]:
        rng = random.Random(_SEED)
        tasks = [(spec, [draw(rng, bank) for bank in banks]) for spec in specs]
        played = play_all(self._sampler, [task for task in tasks for _ in range(size)])
        return [played[start : start + size] for start in range(0, len(played), size)]


def report(folder: Path, episodes: int, seed: int) -> Iterator[str]:
    """The tables as Markdown, each as soon as it is measured."""
    model, tokenizer = load_policy(folder)
    with LocalShell() as shell:
        measurement = Measurement(Sampler(model, tokenizer, shell, seed), episodes)
        start, base = measurement.start()
        yield "### At the start of training, without skills\n\n" + start
        yield "### Steering by skill sentences\n\n" + measurement.steering(base)
        yield "### Groups of eight\n\n" + measurement.groups()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Measure the bundled policy.")
    parser.add_argument("--policy", type=Path, default=POLICY, help="Hugging Face folder")
    parser.add_argument("--episodes", type=int, default=480, help="episodes per figure")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    options = parser.parse_args(arguments)
    for section in report(options.policy, options.episodes, options.seed):
        print(section, flush=True)


if __name__ == "__main__":
    main()
