"""`requires_python`, such as ">=3.11" or ">=3.10,<3.14" (the version specifiers of PEP 440, for releases)."""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\s*\Z")


def satisfies(version: tuple[int, ...], spec: str) -> bool:
    """Whether a Python version such as (3, 11, 7) fulfils every clause. Raises ValueError for a spec it cannot read."""
    return all(_fulfils(version, clause) for clause in spec.split(","))


def _fulfils(version: tuple[int, ...], clause: str) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        raise ValueError(f"expected a version clause such as '>=3.11', found {clause.strip()!r}")
    operator, text, wildcard = match.groups()
    wanted = tuple(int(part) for part in text.split("."))
    if wildcard and operator not in ("==", "!="):
        raise ValueError(f"'.*' goes with == and != only, found {clause.strip()!r}")
    if operator == "~=" and len(wanted) < 2:
        raise ValueError(f"~= needs at least two numbers, found {clause.strip()!r}")
    if wildcard:
        return (version[: len(wanted)] == wanted) is (operator == "==")
    width = max(len(version), len(wanted))
    have, want = (numbers + (0,) * (width - len(numbers)) for numbers in (version, wanted))
    if operator == "~=":
        return have >= want and version[: len(wanted) - 1] == wanted[:-1]
    return {
        ">=": have >= want,
        "<=": have <= want,
        "==": have == want,
        "!=": have != want,
        ">": have > want,
        "<": have < want,
    }[operator]
