"""Finds markers in deployed code. Runs on the laptop and, sent as text, in the container: stdlib only, Python 3.9.

A pattern is one of

* ``TEXT``: plain text. In Python files comments, docstrings and bare string statements do not count.
* ``call:NAME(KEYWORD=VALUE, ...)``: a call of NAME, however it is laid out and through import aliases, `x = NAME`
  assignments, decorators, and as the first argument of `functools.partial`. VALUE is a literal, or ``...`` for "given
  at all"; a dict matches a call's dict that has at least its items. Keywords that are not named do not matter.

Either may end in ``@GLOB``, which narrows it to some files (see `split_glob`).

Not seen: keywords added when a `functools.partial` object is called later, names fetched by `getattr`, kept in
attributes and containers or passed on by another file, and code made at run time.
"""

from __future__ import annotations

import ast
import bisect
import io
import re
import tokenize
import unicodedata
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ctdeploy.remote.payloads.calls import Call, Names, parse, read_call

CALL = "call:"
TEXT_LIMIT = 300
# Markers stand in code: both sides leave data files above this size (bytes) out of a search.
SEARCH_LIMIT = 64 * 1024 * 1024
# Blanked characters become NUL, which no pattern may hold: a pattern with spaces cannot match a blanked comment.
BLANK = "\0"


class Forbidden(NamedTuple):
    """A pattern that must not occur, but in files that match one of the globs of `excepts`."""

    pattern: str
    excepts: Tuple[str, ...] = ()


class Hit(NamedTuple):
    """One line of code that a pattern matches. `line` counts from 1; `text` is safe to print."""

    path: str
    line: int
    text: str
    pattern: str


class Note(NamedTuple):
    """A line that is no hit, and why: "in a comment", "mode is not a literal", ..."""

    path: str
    line: int
    text: str
    pattern: str
    why: str


class Unparsed(NamedTuple):
    """A Python file that this interpreter cannot parse, though words of a pattern stand in it."""

    path: str
    line: int
    why: str


class Result(NamedTuple):
    """What a search found.

    found: per marker its hits. missing: markers without a hit. forbidden: hits that must not be. undecidable: calls of
    which this cannot tell whether they match a pattern. seen: where a missing marker stands outside of code. unsure:
    hits of any pattern in files that do not parse, so that code and comment cannot be told apart. unmatched: patterns
    whose glob, or one of whose `except` globs, fits no file.
    """

    found: Dict[str, List[Hit]]
    missing: List[str]
    forbidden: List[Hit]
    undecidable: List[Note]
    seen: List[Note]
    unsure: List[Note]
    unparsed: List[Unparsed]
    unmatched: List[str]

    def as_dict(self) -> Dict[str, Any]:
        """The same as plain dicts and lists, for JSON."""
        plain: Dict[str, Any] = {"found": {marker: [h._asdict() for h in hits] for marker, hits in self.found.items()}}
        for name in ("forbidden", "undecidable", "seen", "unsure", "unparsed"):
            plain[name] = [each._asdict() for each in getattr(self, name)]
        plain["missing"] = list(self.missing)
        plain["unmatched"] = list(self.unmatched)
        return plain


class Pattern(NamedTuple):
    """A pattern, read. `call` is None for plain text; an empty `glob` means every file."""

    source: str
    text: str
    glob: str
    call: Optional[Call]
    excepts: Tuple[str, ...] = ()

    def applies_to(self, path: str) -> bool:
        if self.glob and not glob_match(self.glob, path):
            return False
        return not any(glob_match(glob, path) for glob in self.excepts)


def search(
    files: Mapping[str, bytes],
    markers: Sequence[str],
    forbidden: Sequence[Union[str, Forbidden, Mapping[str, Any]]] = (),
    python: Sequence[str] = (),
) -> Result:
    """Look for `markers` and `forbidden` in `files` (path in the release -> content; one is held at a time).

    `python` names files that are Python whatever their name says (the entry script). A call that cannot be decided is
    no hit of a marker. Raises ValueError for a pattern that cannot be read.
    """
    wanted = [read_pattern(marker) for marker in dict.fromkeys(markers)]
    unwanted = [read_forbidden(each) for each in forbidden]
    result = Result({pattern.source: [] for pattern in wanted}, [], [], [], [], [], [], [])
    for path in sorted(files):
        here = [pattern for pattern in wanted if pattern.applies_to(path)]
        banned = [pattern for pattern in unwanted if pattern.applies_to(path)]
        if not here and not banned:
            continue
        source = _Source(path, files[path], path in python)
        here = [pattern for pattern in here if source.may_hold(pattern)]
        banned = [pattern for pattern in banned if source.may_hold(pattern)]
        if not here and not banned:
            continue
        source.parse()
        if source.unparsed is not None:
            result.unparsed.append(source.unparsed)
        for pattern in here:
            hits, undecidable, unsure = source.find(pattern)
            result.found[pattern.source] += hits
            result.undecidable.extend(undecidable)
            result.unsure.extend(unsure)
            result.seen.extend(source.outside_code(pattern))
        for pattern in banned:
            hits, undecidable, unsure = source.find(pattern)
            result.forbidden.extend(hits)
            result.undecidable.extend(note for note in undecidable if note not in result.undecidable)
            result.unsure.extend(note for note in unsure if note not in result.unsure)
    result.missing.extend(marker for marker, hits in result.found.items() if not hits)
    result.seen[:] = [note for note in result.seen if note.pattern in result.missing]
    for pattern in (*wanted, *unwanted):
        for glob in filter(None, (pattern.glob, *pattern.excepts)):
            if not any(glob_match(glob, path) for path in files):
                result.unmatched.append("{}: {} fits no file".format(pattern.source, glob))
    return result


def read_forbidden(entry: Union[str, Forbidden, Mapping[str, Any]]) -> Pattern:
    """A pattern that must not occur, from its text or from {"pattern": ..., "except": [...]}."""
    if isinstance(entry, str):
        return read_pattern(entry)
    if isinstance(entry, Forbidden):
        return read_pattern(entry.pattern)._replace(excepts=tuple(entry.excepts))
    return read_pattern(entry["pattern"])._replace(excepts=tuple(entry.get("except", ())))


def read_pattern(source: str) -> Pattern:
    """Read a pattern. Raises ValueError, saying what is wrong, when it is empty or its call cannot be read."""
    text, glob = split_glob(source)
    if not text.strip():
        raise ValueError("a marker must not be empty")
    if BLANK in text:
        raise ValueError("a marker must not hold a NUL character")
    if not text.startswith(CALL):
        return Pattern(source, text, glob, None)
    expression = text[len(CALL) :].strip()
    return Pattern(source, expression, glob, read_call(source, expression))


def split_glob(pattern: str) -> Tuple[str, str]:
    """Split ``TEXT@GLOB`` at its last ``@``; the glob is "" where there is none.

    What follows the ``@`` is a glob if it looks like one: letters, digits and ``._-+*?[]!/`` only, with a wildcard, a
    slash, or a file ending of at most five letters. So ``@torch.compile`` and ``a @ b.T`` are plain text. A marker
    such as ``me@host.org`` is made plain text by an ``@`` at its end: ``me@host.org@``.
    """
    text, at, glob = pattern.rpartition("@")
    if not at or not text:
        return pattern, ""
    looks_like_one = re.search(r"[*?\[/]|\.\w{1,5}\Z", glob) and re.match(r"[\w.*?\[\]!/+-]+\Z", glob)
    if glob and not looks_like_one:
        return pattern, ""
    return text, glob


def glob_match(glob: str, path: str) -> bool:
    """Whether `path` (posix, relative), or a folder that it lies in, matches.

    Without a slash the glob is compared with each name of the path, else with the path from its start. ``*`` and ``?``
    stop at a slash, ``**`` does not.
    """
    anchored = "/" in glob.rstrip("/")
    glob = glob.rstrip("/")
    glob = glob[2:] if glob.startswith("./") else glob.lstrip("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\])", glob)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    regex = "".join(
        special.get(part) or (_char_class(part) if i % 2 else re.escape(part)) for i, part in enumerate(parts)
    )
    return re.match("{}{}(?:/.*)?\\Z".format("" if anchored else "(?:.*/)?", regex), path, re.DOTALL) is not None


def _char_class(part: str) -> str:
    inner = part[1:-1].replace("\\", "\\\\")
    return "[^/{}]".format(inner[1:]) if inner.startswith("!") else "[{}]".format(inner.replace("^", "\\^"))


class _Span(NamedTuple):
    start: int
    end: int
    where: str


class _Source:
    """One file: its text, the same with everything blanked that is not code, and its syntax tree if it is Python."""

    def __init__(self, path: str, data: bytes, is_python: bool) -> None:
        self.path = path
        self.is_python = is_python or is_python_file(path, data)
        self.tree: Optional[ast.Module] = None
        self.unparsed: Optional[Unparsed] = None
        self.spans: List[_Span] = []
        self.names: Optional[Names] = None
        self.text = self._decode(data)
        self.code = self.text
        self.starts = _line_starts(self.text)

    def _decode(self, data: bytes) -> str:
        if self.is_python:
            try:
                encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
                return _newlines(data.decode(encoding))
            except UnicodeDecodeError as error:
                line = data[: error.start].count(b"\n") + 1
                self.unparsed = Unparsed(self.path, line, "not {} text".format(error.encoding))
            except (SyntaxError, LookupError) as error:
                self._cannot_parse(error)
        return _newlines(data.decode("utf-8", "replace"))

    def may_hold(self, pattern: Pattern) -> bool:
        """False if the words of a pattern are nowhere in the file, which saves parsing it."""
        if pattern.call is None:
            return pattern.text in self.text
        # Python reads identifiers in the normal form NFKC.
        text = self.text if self.text.isascii() else unicodedata.normalize("NFKC", self.text)
        return pattern.call.last_name in text

    def parse(self) -> None:
        """Tell code from the rest; `unparsed` says why that cannot be done."""
        if not self.is_python or self.unparsed is not None:
            return
        try:
            tree = parse(self.text)
            self.spans = _spans_outside_code(self.text, tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
            self._cannot_parse(error)
            return
        self.tree = tree
        self.code = _blank(self.text, self.spans)

    def _cannot_parse(self, error: Exception) -> None:
        why = getattr(error, "msg", None) or str(error) or type(error).__name__
        self.unparsed = Unparsed(self.path, getattr(error, "lineno", None) or 1, printable(why))

    def find(self, pattern: Pattern) -> Tuple[List[Hit], List[Note], List[Note]]:
        """Hits, undecidable calls, and hits that may be no code because the file does not parse."""
        if self.unparsed is not None:
            why = "in a file that does not parse (line {}: {})".format(self.unparsed.line, self.unparsed.why)
            if pattern.call is None:
                lines = self._lines_with(self.text, pattern.text)
            else:
                word = re.compile(r"\b{}\b".format(re.escape(pattern.call.last_name)))
                lines = sorted({self._line(match.start()) for match in word.finditer(self.text)})
            return [], [], [self._note(line, pattern, why) for line in lines]
        if pattern.call is None:
            lines = self._lines_with(self.code, pattern.text)
            return [Hit(self.path, line, self._shown(line), pattern.source) for line in lines], [], []
        if self.tree is None:
            return [], [], []
        if self.names is None:
            self.names = Names(self.tree)
        hits, notes = [], []
        for line, why in self.names.calls(pattern.call):
            if why:
                notes.append(self._note(line, pattern, why))
            else:
                hits.append(Hit(self.path, line, self._shown(line), pattern.source))
        return hits, notes, []

    def outside_code(self, pattern: Pattern) -> List[Note]:
        """Where the pattern's text touches a comment, a docstring or a string statement."""
        notes: Dict[int, Note] = {}
        for start in _occurrences(self.text, pattern.text):
            for span in self.spans:
                if span.start < start + len(pattern.text) and start < span.end:
                    line = self._line(start)
                    notes.setdefault(line, self._note(line, pattern, span.where))
        return list(notes.values())

    def _lines_with(self, text: str, wanted: str) -> List[int]:
        return sorted({self._line(start) for start in _occurrences(text, wanted)})

    def _line(self, offset: int) -> int:
        return bisect.bisect_right(self.starts, offset)

    def _note(self, line: int, pattern: Pattern, why: str) -> Note:
        return Note(self.path, line, self._shown(line), pattern.source, why)

    def _shown(self, line: int) -> str:
        start = self.starts[line - 1]
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return printable(self.text[start:end].strip())


def _spans_outside_code(text: str, tree: ast.Module) -> List[_Span]:
    starts = _line_starts(text)
    spans = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            start = starts[token.start[0] - 1] + token.start[1]
            spans.append(_Span(start, start + len(token.string), "in a comment"))

    def offset(line: int, column: int) -> int:
        # The columns of ast count bytes of UTF-8.
        rest = text[starts[line - 1] : starts[line] if line < len(starts) else len(text)]
        return starts[line - 1] + len(rest.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "replace"))

    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, holders) and node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_string(node.value):
            where = "in a docstring" if id(node) in docstrings else "in a string that nothing uses"
            value = node.value
            end = offset(value.end_lineno or value.lineno, value.end_col_offset or value.col_offset)
            spans.append(_Span(offset(value.lineno, value.col_offset), end, where))
    return sorted(spans)


def is_python_file(path: str, data: bytes) -> bool:
    """Whether a file is Python by its name or its shebang line."""
    if path.endswith((".py", ".pyw", ".pyi")):
        return True
    first = data[:200].split(b"\n", 1)[0]
    return first.startswith(b"#!") and b"python" in first


def printable(text: str) -> str:
    """The text without control characters (a terminal would obey them), at most TEXT_LIMIT characters long."""
    safe = "".join(char if char.isprintable() else " " if char == "\t" else "?" for char in text[: TEXT_LIMIT + 1])
    return safe if len(safe) <= TEXT_LIMIT else safe[:TEXT_LIMIT] + "..."


def _is_string(node: ast.expr) -> bool:
    """A string without effect. An f-string that evaluates something is code, and stays."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    parts = getattr(node, "values", None)
    kind = type(node).__name__
    return kind in ("JoinedStr", "TemplateStr") and all(isinstance(part, ast.Constant) for part in parts or ())


def _line_starts(text: str) -> List[int]:
    return [0] + [match.end() for match in re.finditer("\n", text)]


def _newlines(text: str) -> str:
    """Line ends as Python's own reader makes them, so that line numbers agree with its."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _blank(text: str, spans: Iterable[_Span]) -> str:
    pieces, done = [], 0
    for span in spans:
        start = max(span.start, done)
        if span.end <= start:
            continue
        pieces += [text[done:start], re.sub(r"[^\n]", BLANK, text[start : span.end])]
        done = span.end
    return "".join([*pieces, text[done:]])


def _occurrences(text: str, wanted: str) -> Iterable[int]:
    start = text.find(wanted)
    while start >= 0:
        yield start
        start = text.find(wanted, start + 1)
