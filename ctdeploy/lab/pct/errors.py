"""How `pct` ends when it cannot do what was asked: a text on stderr and a code.

Codes follow Perl's rule for `die`: errno where one was left over (2 after a missing file, 4 after an interrupted wait),
else 255.
"""

from __future__ import annotations

FAILED = 255
NO_ENTRY = 2
INTERRUPTED = 4


class PctError(Exception):
    """An end before or without a task; `text` is printed as it is."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class TaskError(Exception):
    """The end of a task; push and pull print it and still exit with 0."""


class UsageError(PctError):
    """A bad call: `400 ...` and the command's usage line."""

    def __init__(self, reason: str, usage: str) -> None:
        super().__init__(f"400 {reason}\n{usage}\n")


def no_config(node: str, vmid: int) -> str:
    return f"Configuration file 'nodes/{node}/lxc/{vmid}.conf' does not exist\n"
