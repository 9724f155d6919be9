"""Who calls `pct`: its arguments and environment as the kernel has them, and what its locale makes of them.

Python changes LC_CTYPE in a C locale and decodes its own way, so both are read from /proc/self.
"""

from __future__ import annotations

import _locale
import os
import sys

# The lines of Perl's complaint about a locale that is not installed (perl 5.40; 5.36 has only the first two and LANG).
CATEGORIES = (
    "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_COLLATE", "LC_TIME", "LC_MESSAGES", "LC_MONETARY",
    "LC_ADDRESS", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_PAPER", "LC_TELEPHONE", "LC_NAME",
)  # fmt: skip


class Caller:
    """`arguments` decoded by the caller's locale, `environment` as raw bytes in its order."""

    def __init__(self) -> None:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
        self.environment: dict[bytes, bytes] = {}
        for entry in entries:
            key, equals, value = entry.partition(b"=")
            if equals:
                self.environment.setdefault(key, value)
        self.utf8 = self._codeset() == "UTF-8"
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().split(b"\0")[:-1]
        raw = words[len(words) - len(sys.argv) + 1 :] if len(sys.argv) > 1 else []
        self.arguments = [self._decode(word) for word in raw]

    def _codeset(self) -> str:
        """The character set of the caller's locale, by the C library, which also says whether it is installed."""
        for key in list(os.environ):
            if key.startswith(("LC_", "LANG")):
                del os.environ[key]
        for name, value in self.environment.items():
            if name.startswith((b"LC_", b"LANG")):
                os.environb[name] = value
        try:
            _locale.setlocale(_locale.LC_ALL, "")
        except _locale.Error:  # type: ignore[attr-defined]  # the stubs do not know it
            self._complain()
            _locale.setlocale(_locale.LC_ALL, "C")
        return _locale.nl_langinfo(_locale.CODESET)

    def _complain(self) -> None:
        lines = ["perl: warning: Setting locale failed.", "perl: warning: Please check that your locale settings:"]
        for name in CATEGORIES:
            lines.append(f"\t{name} = {self._shown(name)},")
        lines.append(f"\tLANG = {self._shown('LANG')}")
        lines.append("    are supported and installed on your system.")
        lines.append('perl: warning: Falling back to the standard locale ("C").')
        say(("\n".join(lines) + "\n").encode())

    def _shown(self, name: str) -> str:
        value = self.environment.get(name.encode())
        return "(unset)" if value is None else f'"{value.decode(errors="replace")}"'

    def _decode(self, word: bytes) -> str:
        """In a C locale every byte above 127 is lost, in UTF-8 every byte that is none."""
        return word.decode("utf-8" if self.utf8 else "ascii", errors="replace")


def say(data: bytes) -> None:
    """Write to stderr, whoever still reads it."""
    _write(2, data)


def show(data: bytes) -> None:
    """Write to stdout."""
    _write(1, data)


def _write(handle: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(handle, data) :]
    except OSError:
        # As a Perl `print`: nobody looks at what it returns.
        pass


def narrow(text: str) -> bytes:
    """How Perl prints a string without an output layer: Latin-1 where that is possible, else UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


LONGEST = 4084  # with the log's "TASK ERROR: " a line of 4096 bytes


def cut(text: str) -> str:
    """A task's error line: UTF-8, cut to as many bytes as the line has characters (recorded: one byte at the end is
    lost per extra byte). The line's own end is lost first and put back. Very long lines are cut as well."""
    line = (text + "\n").encode("utf-8", "surrogateescape")
    return line[: min(len(text) + 1, LONGEST)].decode("utf-8", "surrogateescape").rstrip("\n")
