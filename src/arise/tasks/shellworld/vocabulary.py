"""Words that skill sentences of other authors are likely to use, and texts that the shell prints.

Each becomes one token. A word that no demonstration holds keeps an untrained embedding, which
disturbs the policy less than a run of single letters.
"""

from __future__ import annotations

ENGLISH: tuple[str, ...] = tuple(
    """
    about above accept according act action actions actual adapt add adding after again against
    all already also always and another any anything apply are argument as ask asked asks at
    attempt avoid be because become before begin behave between both but by call can careful
    carefully case change changed changes check checked checking clean command commands compare
    complete completed condition confirm contains content contents copy correct correctly
    create created data demand directly do document does done each edit effect empty end ends
    ensure error errors even every exactly examine exit expected extra fail failed failing
    fails failure file files final find finish finished first fix folder follow following
    follows for format from full get give given gives goal has have help hint hold how
    identical if ignore important in include input inspect instead instruction into is issue it
    its key know last later leave left line lines list look looks make makes making match may
    mean message mentioned mentions mistake modify more must name named names need needed needs
    never new next no not note notes nothing now of off on once one only open or order other
    out output part parts path perform place plain possible previous print printed prints
    problem produce produced produces proper prove provide put quickly read reading really
    reason redundant remaining remember remove repair repeat repeated repeating report required
    requirement requires rerun response rest result results retry return reveal review right
    rule rules run running same say says script second see seen show shown shows silent
    silently simple skip so solve some something soon spec specified start state stated states
    step steps still stop submit submitted submitting succeed succeeded succeeds success
    suggest sure take task tell tells than that the their them then there these they thing this
    to together tool tried true trust try turn turns unchanged understand until unused up use
    used useless user using value values verify view want wanted wants waste wasted was way
    well what when where whether which while whole why with without word words work worked
    works write writes writing written wrong wrote you your
    """.split()
)
"""Common words of instructions about working in a shell."""

SHELL_TEXTS: tuple[str, ...] = (
    "bash: line 1: command not found",
    "cat: x: No such file or directory",
    "sort: cannot read: x: No such file or directory",
    "cannot open: cannot stat: Permission denied: Is a directory",
    "syntax error near unexpected token: unexpected EOF while looking for matching",
    "missing operand: invalid option: unknown command: unterminated s command: char",
    "Try help for more information. omitting directory: are the same file: not a directory",
    "characters left out",
    "no command",
    "timed out after",
    "input file is output file",
)
"""Messages of the shell and of standard tools."""
