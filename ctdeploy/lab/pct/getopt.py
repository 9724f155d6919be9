"""Command lines as Perl's Getopt::Long reads them for the tools of Proxmox VE.

Options and arguments mix, `-opt` is `--opt`, a unique beginning of an option is enough, `--` ends options. A boolean
takes the next word as its value unless that looks like an option.
"""

from __future__ import annotations

from ctdeploy.lab.conf import truth
from ctdeploy.lab.pct.caller import narrow, say
from ctdeploy.lab.pct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Command:
    """What a sub-command takes. `options` pairs names with kinds: text, boolean or integer."""

    def __init__(
        self,
        name: str,
        arguments: tuple[str, ...] = (),
        options: tuple[tuple[str, str], ...] = (),
        rest: bool = False,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.options = options
        self.rest = rest

    @property
    def usage(self) -> str:
        words = "".join(f"<{name}> " for name in self.arguments)
        if self.rest:
            words += "[<extra-args>] "
        return f"pct {self.name} {words}" + ("[OPTIONS]" if self.arguments else "")


class Call:
    """A call that was read and checked: options by full name, arguments in order, and what remains for `rest`."""

    def __init__(self, options: dict[str, str], arguments: list[str], rest: list[str]) -> None:
        self.options = options
        self.arguments = arguments
        self.rest = rest

    @property
    def vmid(self) -> int:
        return int(self.arguments[0])

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.options.get(name)
        return default if value is None else value == "1"


def parse(command: Command, words: Sequence[str]) -> Call:
    """Read the words after the sub-command. Raises UsageError, after naming each bad option on stderr."""
    options, positional = _options(command, words)
    if len(positional) < len(command.arguments):
        raise UsageError("not enough arguments", command.usage)
    if len(positional) > len(command.arguments) and not command.rest:
        raise UsageError("too many arguments", command.usage)
    kinds = dict(command.options)
    for name, value in options.items():
        if kinds[name] == "boolean":
            known = truth(value) if value else True
            if known is None:
                raise UsageError("unable to parse boolean option", command.usage)
            options[name] = "1" if known else "0"
    split = len(command.arguments)
    problems = {}
    for name, value in (*zip(command.arguments, positional, strict=False), *options.items()):
        problem = _problem(name, kinds.get(name, ""), value)
        if problem:
            problems[name] = problem
    if problems:
        lines = "".join(f"{name}: {problem}\n" for name, problem in sorted(problems.items()))
        raise UsageError(f"Parameter verification failed.\n{lines}".rstrip("\n") + _spare(problems), command.usage)
    return Call(options, positional[:split], positional[split:])


def _spare(problems: dict[str, str]) -> str:
    """Texts of format checks end with a line end of their own."""
    return "\n" if problems[max(problems)].endswith("\n") else ""


def _options(command: Command, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    positional: list[str] = []
    failed = False
    left = list(words)
    kinds = dict(command.options)
    while left:
        word = left.pop(0)
        if word == "--":
            positional += left
            break
        if not _looks_like_option(word):
            positional.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=") if word.startswith("--") else word[1:].partition("=")
        full = _full_name(name, kinds)
        if isinstance(full, list):
            failed = True
            _say(f"Option {name} is ambiguous ({', '.join(full)})\n" if full else f"Unknown option: {name}\n")
        elif equals:
            if not value and kinds[full] != "boolean":
                failed = True
                _say(f"Option {full} requires an argument\n")
            options[full] = value
        elif kinds[full] == "boolean":
            options[full] = left.pop(0) if left and not _looks_like_option(left[0]) and left[0] != "--" else ""
        elif left:
            # A mandatory value may look like anything.
            options[full] = left.pop(0)
        else:
            failed = True
            _say(f"Option {full} requires an argument\n")
    if failed:
        raise UsageError("unable to parse option", command.usage)
    return options, positional


def _say(text: str) -> None:
    say(narrow(text))


def _looks_like_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-")


def _full_name(name: str, kinds: dict[str, str]) -> str | list[str]:
    """The option that is meant, or the list of those that could be."""
    low = name.lower()
    exact = [known for known in kinds if known.lower() == low]
    if exact:
        return exact[0]
    found = sorted(known for known in kinds if low and known.lower().startswith(low))
    return found[0] if len(found) == 1 else found


def _problem(name: str, kind: str, value: str) -> str | None:
    if name == "vmid":
        if not _integer(value):
            return f"type check ('integer') failed - got '{value}'"
        if not (3 <= len(value) <= 9 and value[0] in "123456789" and value.isdigit()):
            return "invalid format - value does not look like a valid VM ID\n"
    if kind == "integer":
        if not _integer(value):
            return f"type check ('integer') failed - got '{value}'"
        if int(value) < 0:
            return "value must have a minimum value of 0"
    return None


def _integer(value: str) -> bool:
    digits = value[1:] if value[:1] in ("+", "-") else value
    return bool(digits) and digits.isascii() and digits.isdigit()
