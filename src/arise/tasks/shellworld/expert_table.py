"""What each behaviour is worth: `python -m arise.tasks.shellworld.expert_table`.

Plays the scripted expert on training and unseen tasks, complete and with one behaviour switched
off, and prints the share of solved tasks by family.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from arise.tasks.shellworld.episode import MAX_TURNS, SUBMIT
from arise.tasks.shellworld.expert import Disposition, Expert
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.simulate import SimulatedShell
from arise.tasks.shellworld.spec import TaskSpec

DISPOSITIONS: Mapping[str, Disposition] = {
    "complete": Disposition(),
    "does not read": Disposition(read=False),
    "does not heed": Disposition(heed=False),
    "does not verify": Disposition(verify=False),
    "does not finish": Disposition(finish=False),
    "wastes turns": Disposition(waste=1.0),
}
"""Column to what the expert shows; the last one accompanies every command by a useless one."""


def solves(spec: TaskSpec, disposition: Disposition) -> float:
    """The reward of one episode within the limit of turns."""
    shell = SimulatedShell(spec)
    commands = Expert(spec.plan, disposition, random.Random(spec.id)).play()
    command = next(commands)
    for _ in range(MAX_TURNS):
        if command == SUBMIT:
            break
        command = commands.send(shell.run(command))
    return shell.grade()


def success_by_family(specs: Sequence[TaskSpec]) -> dict[str, dict[str, tuple[int, float]]]:
    """Family to column to number of tasks and share of them that are solved."""
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for spec in specs:
        for name, disposition in DISPOSITIONS.items():
            rewards[spec.family][name].append(solves(spec, disposition))
    return {
        family: {name: (len(found), sum(found) / len(found)) for name, found in row.items()}
        for family, row in sorted(rewards.items())
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description="What each behaviour is worth, by family.")
    parser.add_argument("--count", type=int, default=1000, help="tasks of each split")
    parser.add_argument("--seed", type=int, default=5, help="of the tasks")
    options = parser.parse_args(arguments)
    print("| family | tasks | " + " | ".join(DISPOSITIONS) + " |")
    print("|---" * (2 + len(DISPOSITIONS)) + "|")
    for split in ("train", "unseen"):
        table = success_by_family(generate_tasks(split, options.count, options.seed))
        for family, row in table.items():
            cells = (f"{100 * rate:.0f} %" for _, rate in row.values())
            print(f"| {family} | {row['complete'][0]} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
