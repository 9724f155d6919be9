"""Where each key of a TOML text stands. `tomllib` tells values but no lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SKIP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_SCALAR = re.compile(r"[^,\]}#\n]*")
# In a basic string a backslash hides the next character; a multi-line one may end in up to five quotes.
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}(?!")', re.DOTALL),
    re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}


def key_lines(text: str) -> dict[Path, int]:
    """The line (from 1) of every key, table and list item. The text has to be valid TOML; it is not checked again."""
    return _Scanner(text).run()


def nearest_line(lines: dict[Path, int], path: Sequence[str | int]) -> tuple[Path, int]:
    """The longest beginning of `path` that stands in the text, and its line; ((), 1) if none does."""
    for length in range(len(path), 0, -1):
        known = tuple(path[:length])
        if known in lines:
            return known, lines[known]
    return (), 1


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}
        self.counted_at, self.line = 0, 1

    def run(self) -> dict[Path, int]:
        table: Path = ()
        self._skip(_SKIP)
        while self.at < len(self.text):
            if self.text.startswith("[", self.at):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_SKIP)
        return self.lines

    def _header(self) -> Path:
        is_array = self.text.startswith("[[", self.at)
        line = self._line()
        self.at += 2 if is_array else 1
        keys = self._key()
        self.at += 2 if is_array else 1
        path: Path = ()
        for index, key in enumerate(keys):
            path = (*path, key)
            self.lines.setdefault(path, line)
            is_last = index == len(keys) - 1
            if is_array and is_last:
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path = (*path, self.counts[path])
        self.lines[path] = line
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._key():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(path)

    def _key(self) -> list[str]:
        """A dotted key; stops at the first character after it."""
        keys = []
        while True:
            self._skip(_BLANK)
            start = self.text[self.at]
            match = _BARE.match(self.text, self.at)
            if start in "\"'":
                keys.append(self._string())
            elif match is not None:
                keys.append(match.group())
                self.at = match.end()
            else:
                raise ValueError(f"no key at line {self._line()}")
            self._skip(_BLANK)
            if not self.text.startswith(".", self.at):
                return keys
            self.at += 1

    def _value(self, path: Path) -> None:
        start = self.text[self.at]
        if start in "\"'":
            self._string()
        elif start == "[":
            self._items(path, "]")
        elif start == "{":
            self._items(path, "}")
        else:
            self._skip(_SCALAR)

    def _items(self, path: Path, end: str) -> None:
        """A list or an inline table."""
        self.at += 1
        index = 0
        while True:
            self._skip(_SKIP)
            if self.text.startswith(",", self.at):
                self.at += 1
            elif self.text.startswith(end, self.at):
                self.at += 1
                return
            elif end == "]":
                self.lines[*path, index] = self._line()
                self._value((*path, index))
                index += 1
            else:
                self._pair(path)

    def _string(self) -> str:
        for pattern in _STRINGS:
            match = pattern.match(self.text, self.at)
            if match is not None:
                self.at = match.end()
                inner = match.group()[1:-1]
                return inner if match.group()[0] == "'" else _ESCAPE.sub(_unescape, inner)
        raise ValueError(f"no string at line {self._line()}")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()

    def _line(self) -> int:
        self.line += self.text.count("\n", self.counted_at, self.at)
        self.counted_at = self.at
        return self.line


def _unescape(match: re.Match[str]) -> str:
    short, long, char = match.groups()
    code = short or long
    return chr(int(code, 16)) if code else _ESCAPES.get(char, char)
