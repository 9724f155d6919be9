"""Finds markers in deployed code. Runs on the laptop and, sent as text, in the container: stdlib only, Python 3.9.

A pattern is one of

* ``TEXT``: plain text. In Python files comments, docstrings and bare string statements do not count.
* ``call:NAME(KEYWORD=VALUE, ...)``: a call of NAME, however it is laid out and through import aliases, `x = NAME`
  assignments, decorators and `functools.partial(NAME, ...)` itself. VALUE is a literal, or ``...`` for "given at all";
  a dict matches a call's dict that has at least its items. Keywords that are not named do not matter.

Either may end in ``@GLOB``, which narrows it to some files (see `split_glob`).

What this does not see: keywords added when a `functools.partial` object is called later, names fetched by `getattr`,
objects handed around in containers, and code made at run time.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union


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
    """A Python file that this interpreter cannot parse."""

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
        raise NotImplementedError


def search(
    files: Mapping[str, bytes],
    markers: Sequence[str],
    forbidden: Sequence[Union[str, Forbidden, Mapping[str, Any]]] = (),
    python: Sequence[str] = (),
) -> Result:
    """Look for `markers` and `forbidden` in `files` (path in the release -> content; one is held at a time).

    `python` names files that are Python whatever their name says (the entry script). Raises ValueError for a pattern
    that cannot be read.
    """
    raise NotImplementedError
