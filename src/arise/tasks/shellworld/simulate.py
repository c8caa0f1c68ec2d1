"""What the demonstrators' commands print, without a shell: a hundred times faster than one.

Covers exactly the commands that the scripted expert issues, on files in memory; any other command
is an error here. A test compares it with bash, command by command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from arise.tasks.shellworld.expert import Seen
from arise.tasks.shellworld.spec import TaskSpec

_OK = Seen(exit_code=0, output="")
_AWK = re.compile(r"awk -F, '\{s\+=\$(\d)\} END \{print s\}' (.+)")
_SED = re.compile(r"sed -i s/(\S+)/(\S*)/ (.+)")
_REQUIRED = re.compile(r'has (\w+) \|\| \{ echo "([^"]*)" (>&2|> "\$out"); exit (\d); \}')
_MARK = re.compile(r"^mark=(\w+)$", re.MULTILINE)
_RULE = re.compile(r"has (\w+) && mark=(\w+)")
_LINE = re.compile(r'^  echo "(.*)"$', re.MULTILINE)
_MODE = re.compile(r'mode=(\w+)\n\[ \$mode = (\w+) \] \|\| \{ echo "([^"]*)" >&2; exit (\d); \}')


class _MissingError(Exception):
    """An input file does not exist."""


class SimulatedShell:
    """The working directory of one episode, in memory.

    Args:
        spec: The task whose files it starts with.
    """

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._files = dict(spec.draft.files)

    def run(self, command: str) -> Seen:
        """What `command` gives, and its effect on the files.

        Raises:
            ValueError: The demonstrators never issue such a command.
        """
        text, _, target = command.partition(" > ")
        if target:
            # The shell empties the target before the command runs.
            self._files[target] = ""
        name, *words = text.split()
        handlers: dict[str, Callable[[str, list[str]], Seen]] = {
            "cat": self._cat,
            "ls": self._ls,
            "awk": self._awk,
            "sort": self._sort,
            "grep": self._grep,
            "sed": self._sed,
            "mv": self._mv,
            "sh": self._sh,
            "rm": self._rm,
            "echo": self._echo,
        }
        if name not in handlers:
            raise ValueError(f"not a command of the demonstrators: {command!r}")
        try:
            seen = handlers[name](text, words)
        except _MissingError as error:
            return Seen(exit_code=2 if name == "sort" else 1, output=f"{error}\n")
        if target:
            self._files[target] = seen.output
            return _OK
        return seen

    def grade(self) -> float:
        """The reward that the task's tests would write."""
        draft = self._spec.draft
        right = all(self._files.get(name) == content for name, content in draft.expected.items())
        return float(right and not any(name in self._files for name in draft.gone))

    def _content(self, name: str, message: str) -> str:
        if name not in self._files:
            raise _MissingError(f"{message}{name}: No such file or directory")
        return self._files[name]

    def _inputs(self, names: Sequence[str], message: str) -> list[str]:
        found: list[str] = []
        for name in names:
            if name == "*.txt":
                matching = sorted(n for n in self._files if n.endswith(".txt") and "/" not in n)
                found += [self._files[match] for match in matching]
            else:
                found.append(self._content(name, message))
        return found

    def _cat(self, text: str, words: list[str]) -> Seen:
        names = text.split(" | ")[0].split()[1:]
        joined = "".join(self._inputs(names, "cat: "))
        counted = f"{joined.count(chr(10))}\n"
        return Seen(exit_code=0, output=counted if "| wc -l" in text else joined)

    def _ls(self, text: str, words: list[str]) -> Seen:
        prefix = f"{words[0]}/" if words else ""
        inside = [name[len(prefix) :] for name in self._files if name.startswith(prefix)]
        entries = sorted({name.split("/")[0] for name in inside})
        return Seen(exit_code=0, output="".join(f"{entry}\n" for entry in entries))

    def _awk(self, text: str, words: list[str]) -> Seen:
        match = _AWK.fullmatch(text)
        if match is None:
            raise ValueError(f"not a command of the demonstrators: {text!r}")
        column = int(match.group(1)) - 1
        rows = "".join(self._inputs(match.group(2).split(), "awk: ")).splitlines()
        return Seen(exit_code=0, output=f"{sum(int(row.split(',')[column]) for row in rows)}\n")

    def _sort(self, text: str, words: list[str]) -> Seen:
        unique = words[0] == "-u"
        joined = "".join(self._inputs(words[unique:], "sort: cannot read: ")).splitlines()
        lines = sorted(set(joined) if unique else joined)
        return Seen(exit_code=0, output="".join(f"{line}\n" for line in lines))

    def _grep(self, text: str, words: list[str]) -> Seen:
        joined = "".join(self._inputs(words[2:], "grep: ")).splitlines()
        found = [line for line in joined if words[1] in line]
        return Seen(exit_code=0 if found else 1, output="".join(f"{line}\n" for line in found))

    def _sed(self, text: str, words: list[str]) -> Seen:
        match = _SED.fullmatch(text)
        if match is None:
            raise ValueError(f"not a command of the demonstrators: {text!r}")
        pattern, value, names = match.groups()
        for name in names.split():
            content = self._content(name, "sed: can't read ")
            lines = [re.sub(pattern, value, line, count=1) for line in content.split("\n")]
            self._files[name] = "\n".join(lines)
        return _OK

    def _mv(self, text: str, words: list[str]) -> Seen:
        *names, folder = words
        messages = []
        for name in names:
            if name in self._files:
                self._files[f"{folder}/{name}"] = self._files.pop(name)
            else:
                messages.append(f"mv: cannot stat '{name}': No such file or directory\n")
        return Seen(exit_code=1 if messages else 0, output="".join(messages))

    def _rm(self, text: str, words: list[str]) -> Seen:
        if words[0] not in self._files:
            raise _MissingError(f"rm: cannot remove '{words[0]}': No such file or directory")
        del self._files[words[0]]
        return _OK

    def _echo(self, text: str, words: list[str]) -> Seen:
        return Seen(exit_code=0, output=" ".join(words) + "\n")

    def _sh(self, text: str, words: list[str]) -> Seen:
        """A project script, by the parts of which it was made."""
        script, source, target, *given = words
        body = self._files[script]
        mode = _MODE.search(body)
        if mode is not None and mode.group(1) != mode.group(2):
            message = mode.group(3).replace("$mode", mode.group(1))
            return Seen(exit_code=int(mode.group(4)), output=f"{message}\n")
        for word, message, place, code in _REQUIRED.findall(body):
            if word not in given:
                if place != ">&2":
                    self._files[target] = f"{message}\n"
                return Seen(exit_code=int(code), output=f"{message}\n" if place == ">&2" else "")
        mark = _MARK.findall(body)[-1]
        for word, value in _RULE.findall(body):
            mark = value if word in given else mark
        line_form = _LINE.findall(body)[-1]
        lines = self._content(source, f"{script}: cannot open ").splitlines()
        if line_form == "$((line * mark))":
            made = [str(int(line) * int(mark)) for line in lines]
        else:
            made = [line_form.replace("$line", line).replace("$mark", mark) for line in lines]
        self._files[target] = "".join(f"{line}\n" for line in made)
        return _OK
