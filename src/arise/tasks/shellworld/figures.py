"""Figures of sampled episodes: pass and behaviour rates, well-formedness, copying."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from arise.tasks.shellworld.behaviours import Behaviour, Step
from arise.tasks.shellworld.sampling import Episode
from arise.tasks.shellworld.words import NAMES

_NAMES = frozenset(NAMES)
_WORD = re.compile(r"[a-z]+")
_FORMS = re.compile(
    r"submit|ls(?: \S+)?|cat [\w.]+|cat \S+(?: \S+)* (?:\| wc -l )?> \S+|rm \S+|echo \S+ > \S+"
    r"|sh \w+\.sh \S+ \S+(?: \S+)*|sort (?:-u )?\S+(?: \S+)* > \S+|mv \S+(?: \S+)+"
    r"|awk -F, '\{s\+=\$\d\} END \{print s\}' \S+(?: \S+)* > \S+"
    r"|grep -h \S+ \S+(?: \S+)* > \S+|sed -i s/\S+/\S*/ \S+(?: \S+)*"
)


def mean(values: Iterable[float]) -> float:
    """Mean, or NaN of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else float("nan")


def pass_rate(episodes: Sequence[Episode]) -> float:
    """Share of solved tasks."""
    return mean(episode.reward for episode in episodes)


def pass_by_family(episodes: Sequence[Episode]) -> dict[str, tuple[int, float]]:
    """Family to number of episodes and pass rate."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.spec.family].append(episode)
    return {name: (len(found), pass_rate(found)) for name, found in sorted(groups.items())}


def behaviour_rate(episodes: Sequence[Episode], behaviour: Behaviour) -> float:
    """Share of episodes that show a behaviour, among those that call for it."""
    shown = (episode.behaviours[behaviour] for episode in episodes)
    return mean(float(value) for value in shown if value is not None)


def well_formed(episodes: Sequence[Episode]) -> float:
    """Share of commands that have one of the forms of the demonstrations."""
    steps = (step for episode in episodes for step in episode.steps)
    return mean(float(_FORMS.fullmatch(step.command) is not None) for step in steps)


def names_copied(episodes: Sequence[Episode]) -> float:
    """Share of names in commands that occur in what the policy had seen before."""
    hits = []
    for episode in episodes:
        seen = set(_WORD.findall(episode.spec.instruction))
        for step in episode.steps:
            hits += [float(name in seen) for name in _names(step.command)]
            seen |= set(_WORD.findall(step.observation))
    return mean(hits)


def values_copied(episodes: Sequence[Episode]) -> float:
    """Share of right words among those that a command can only have from tool output.

    Counted are commands after an output named the word of a fix, as long as no command has used
    it, that hold a name which is neither in the instruction nor in an earlier command.
    """
    hits = []
    for episode in episodes:
        plan = episode.spec.plan
        fixes = (plan.rule, *(fix.word for fix in (plan.heed, plan.verify) if fix))
        sought = {fix.split(".")[0] for fix in fixes if fix}
        known = set(_WORD.findall(episode.spec.instruction))
        named: set[str] = set()
        for step in episode.steps:
            words = _names(step.command)
            fresh = [word for word in words if word not in known]
            if fresh and named:
                hits.append(float(bool(named & set(fresh))))
                named -= set(fresh)
            known |= set(words)
            named |= sought & set(_WORD.findall(step.observation)) - known
    return mean(hits)


def revealed_used(episodes: Sequence[Episode]) -> dict[str, tuple[int, float]]:
    """By source: how often it named the word of a fix, and how often a later command used it."""
    uses: dict[str, list[float]] = {"rule": [], "error": [], "output": []}
    for episode in episodes:
        plan = episode.spec.plan
        sought = {
            "rule": plan.rule,
            "error": plan.heed.word if plan.heed else "",
            "output": plan.verify.word if plan.verify else "",
        }
        for source, word in sought.items():
            used = _use(episode.steps, word.split(".")[0]) if word else None
            if used is not None:
                uses[source].append(float(used))
    return {source: (len(values), mean(values)) for source, values in uses.items()}


def _use(steps: Sequence[Step], word: str) -> bool | None:
    for index, step in enumerate(steps):
        if word in _WORD.findall(step.observation):
            later = steps[index + 1 :]
            return any(word in _WORD.findall(following.command) for following in later)
    return None


def all_fail_share(groups: Sequence[Sequence[Episode]]) -> float:
    """Share of groups of one task in which no episode solved it."""
    return mean(float(not any(episode.reward for episode in group)) for group in groups)


def _names(command: str) -> list[str]:
    return [word for word in _WORD.findall(command) if word in _NAMES]
