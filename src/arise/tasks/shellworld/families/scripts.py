"""The project scripts that tool families come with, and what their messages reveal.

A script is called as `sh NAME.sh IN OUT [WORD ...]`. Words may be required by the rule of the
document (without it the output is another one, silently), by an error, or by the written file.
"""

from __future__ import annotations

from dataclasses import dataclass

from arise.tasks.shellworld.families.base import HEED, READ, VERIFY, Builder
from arise.tasks.shellworld.spec import Fix

_ERRORS = ("need {label} {word}", "error: give {label} {word}", "no {label}, want {label} {word}")
_SILENT = ("need {label} {word}", "draft, want {label} {word}", "no {label} yet, use {word}")
_RULES = ("use {label} {{word}}", "{label}: {{word}}", "the {label} is {{word}}")

_SCRIPT = """in=$1 out=$2
shift 2
words=" $* "
has() {{ case "$words" in *" $1 "*) return 0 ;; esac; return 1; }}
{checks}mark={plain}
{rule}while read -r line; do
  echo "{line}"
done < "$in" > "$out"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A kind of script.

    Attributes:
        name: File name without extension.
        labels: What the rule's word, the error's word and the silent word are called.
        plain: Value of `$mark` without a rule.
        line: Shell text written for each line of input, from `$line` and `$mark`.
        numeric: Whether input lines are numbers and the rule's word stands for a factor.
    """

    name: str
    labels: tuple[str, str, str]
    plain: str
    line: str
    numeric: bool = False

    def output(self, lines: list[str], mark: str) -> list[str]:
        """What the script writes for `lines` if `$mark` has this value."""
        if self.numeric:
            return [str(int(line) * int(mark)) for line in lines]
        return [self.line.replace("$line", line).replace("$mark", mark) for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The arguments that a drawn script asks for; empty or `None` where it asks for none."""

    rule: str
    heed: Fix | None
    verify: Fix | None
    mark: str


def add_script(build: Builder, script: Script, *, failing: bool = True) -> Words:
    """Write the script and the document, with exactly the traps that the task needs.

    Args:
        build: The task under construction.
        script: Which script.
        failing: Whether a needed failure comes from a missing word of this script.
    """
    rule_label, error_label, silent_label = script.labels
    rule_word, error_word, silent_word = build.names.many(3)
    rules = tuple(rule.format(label=rule_label) for rule in _RULES)
    rule = build.rule(rules, rule_word)
    checks, heed, verify = "", None, None
    if failing and HEED in build.needs:
        message = build.rng.choice(_ERRORS).format(label=error_label, word=error_word)
        checks += f'has {error_word} || {{ echo "{message}" >&2; exit 2; }}\n'
        heed = Fix(word=error_word, extra=error_word)
    if VERIFY in build.needs:
        message = build.rng.choice(_SILENT).format(label=silent_label, word=silent_word)
        checks += f'has {silent_word} || {{ echo "{message}" > "$out"; exit 0; }}\n'
        verify = Fix(word=silent_word, extra=silent_word)
    mark = script.plain
    if READ in build.needs:
        mark = str(build.rng.randint(3, 9)) if script.numeric else rule_word
    build.files[f"{script.name}.sh"] = _SCRIPT.format(
        checks=checks,
        plain=script.plain,
        rule=f"has {rule_word} && mark={mark}\n" if READ in build.needs else "",
        line=script.line,
    )
    return Words(rule=rule, heed=heed, verify=verify, mark=mark)
