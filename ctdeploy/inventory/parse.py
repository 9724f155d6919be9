"""hosts.toml text -> checked tables. Every error gives file, line, the key's path, and what was expected."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ctdeploy.errors import ConfigError
from ctdeploy.inventory import toml_lines
from ctdeploy.inventory.tables import CONTAINER_NAME, NAME, NAME_RULE, HostsToml, known_keys
from ctdeploy.inventory.values import LAB, LAB_CT

SHOWN_ERRORS = 10
SELECTOR = re.compile(r"(\d+)(?:@(.+))?\Z")

EXPECTED = {
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "list_type": "a list in square brackets",
    "dict_type": "a table",
    "model_type": "a table",
    "bool_type": "true or false",
}


@dataclass(frozen=True)
class Parsed:
    """A valid hosts.toml: its tables, and the line of each key in `file`."""

    tables: HostsToml
    lines: dict[toml_lines.Path, int]
    file: str

    def place(self, *path: str | int) -> str:
        """`file:line` of a key, or of the nearest table around it."""
        return f"{self.file}:{toml_lines.nearest_line(self.lines, path)[1]}"


@dataclass(frozen=True, order=True)
class _Problem:
    line: int
    key: str
    text: str


def read(path: Path, shown: str | None = None) -> Parsed:
    """Read and check a file. `shown` is how it is named in errors. Raises ConfigError."""
    name = shown or str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}", next=f"ls -l {name}") from error
    return parse(data, name)


def parse(data: bytes, file: str) -> Parsed:
    """Check the bytes of a hosts.toml called `file`. A byte order mark is dropped. Raises ConfigError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{file}:{line}: is not UTF-8 (byte 0x{data[error.start]:02x})", next=f"edit {file}"
        ) from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(str(error), text, file), next=f"edit {file}") from None
    except RecursionError:
        raise ConfigError(f"{file}:1: is nested too deeply", next=f"edit {file}") from None
    lines = toml_lines.key_lines(text)
    try:
        tables = HostsToml.model_validate(raw)
    except ValidationError as error:
        raise _error(file, [_explain(each, raw, lines) for each in error.errors()]) from None
    problems = list(_cross_check(tables, lines))
    if problems:
        raise _error(file, problems)
    return Parsed(tables, lines, file)


def has_own_lab(tables: HostsToml) -> bool:
    """Whether the built-in container `lab` exists: the file has none on the host `lab`, and the name is free."""
    return LAB not in tables.containers and not any(each.host == LAB for each in tables.containers.values())


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` for the known name most like `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def _error(file: str, problems: list[_Problem]) -> ConfigError:
    ordered = sorted(set(problems))
    shown = [f"{file}:{each.line}: {each.key}: {each.text}" for each in ordered[:SHOWN_ERRORS]]
    if len(ordered) > SHOWN_ERRORS:
        shown.append(f"and {len(ordered) - SHOWN_ERRORS} more errors")
    return ConfigError("\n".join(shown), next=f"edit {file}, then: ctdeploy config show")


def _syntax(message: str, text: str, file: str) -> str:
    # tomllib tells the place in its text only ("... (at line 3, column 5)", "... (at end of document)").
    match = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    what = message[: match.start()] if match else message
    if match and match.group(1):
        return f"{file}:{match.group(1)}:{match.group(2)}: {what}"
    return f"{file}:{text.rstrip().count(chr(10)) + 1}: {what} (at the end of the file)"


def _explain(error: Any, raw: dict[str, Any], lines: dict[toml_lines.Path, int]) -> _Problem:
    loc = tuple(error["loc"])
    known, line = toml_lines.nearest_line(lines, loc)
    kind = error["type"]
    if kind == "extra_forbidden":
        parent = loc[:-1]
        keys = known_keys(parent)
        text = f"unknown key{nearest(str(loc[-1]), keys)} (known here: {', '.join(keys)})"
        return _Problem(line, dotted(loc), text)
    if kind == "missing":
        return _Problem(line, dotted(loc), "is required")
    key = dotted(known or loc)
    value = _value_at(raw, known)
    if kind == "value_error":
        text = str(error["ctx"]["error"])
        return _Problem(line, key, text)
    context = error.get("ctx", {})
    if kind == "greater_than_equal":
        return _Problem(line, key, f"expected {context['ge']} or more, found {value}")
    if kind == "less_than_equal":
        return _Problem(line, key, f"expected {context['le']} or less, found {value}")
    if kind == "literal_error":
        return _Problem(line, key, f"expected {context['expected']}")
    if kind == "string_pattern_mismatch":
        return _Problem(line, key, "expected letters, digits and '_', not starting with a digit")
    expected = EXPECTED.get(kind)
    if expected is None:
        return _Problem(line, key, error["msg"])
    return _Problem(line, key, f"expected {expected}, found {_kind(value)}")


def dotted(path: Iterable[str | int]) -> str:
    """A key's path as one writes it: `apps.train.markers[0]`, quoted where a name needs it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else '"' + part.replace('"', '\\"') + '"'
            text += f".{shown}" if text else shown
    return text


def _kind(value: Any) -> str:
    # Never the value itself: it may be a secret that does not belong here.
    kinds = {str: "a text", bool: "true or false", int: "a whole number", float: "a number with a fraction"}
    kinds |= {list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")


def _value_at(raw: Any, path: toml_lines.Path) -> Any:
    for part in path:
        raw = raw[part]
    return raw


def _cross_check(tables: HostsToml, lines: dict[toml_lines.Path, int]) -> Iterable[_Problem]:
    def problem(path: toml_lines.Path, text: str) -> _Problem:
        return _Problem(toml_lines.nearest_line(lines, path)[1], dotted(path), text)

    for kind, names, rule in (
        ("hosts", tables.hosts, NAME),
        ("containers", tables.containers, CONTAINER_NAME),
        ("apps", tables.apps, NAME),
    ):
        for name in names:
            if not rule.match(name):
                more = ", not starting with a digit" if rule is CONTAINER_NAME else ""
                yield problem((kind, name), f"expected a name of {NAME_RULE}{more}")
    if LAB in tables.hosts:
        yield problem(("hosts", LAB), 'the host "lab" is built in; give this one another name')
    hosts = [LAB, *tables.hosts]
    taken: dict[tuple[str, int], str] = {}
    for name, container in tables.containers.items():
        if container.host not in hosts:
            text = f'there is no host "{container.host}"{nearest(container.host, hosts)} (known: {", ".join(hosts)})'
            yield problem(("containers", name, "host"), text)
        other = taken.setdefault((container.host, container.ct), name)
        if other != name:
            line = toml_lines.nearest_line(lines, ("containers", other, "ct"))[1]
            text = f"{container.ct}@{container.host} is already containers.{other}, at line {line}"
            yield problem(("containers", name, "ct"), text)
    app, ct = tables.defaults.app, tables.defaults.ct
    if app is not None and app not in tables.apps:
        known = ", ".join(tables.apps) or "none"
        yield problem(("defaults", "app"), f'there is no app "{app}"{nearest(app, tables.apps)} (known: {known})')
    if ct is not None:
        text = _dangling_container(ct, tables)
        if text:
            yield problem(("defaults", "ct"), text)


def _dangling_container(selector: str, tables: HostsToml) -> str:
    names = [*tables.containers, *([LAB] if has_own_lab(tables) else [])]
    match = SELECTOR.match(selector)
    if match is None:
        known = f" (known: {', '.join(names)})"
        return "" if selector in names else f'there is no container "{selector}"{nearest(selector, names)}{known}'
    number, host = int(match.group(1)), match.group(2)
    if host is not None:
        hosts = [LAB, *tables.hosts]
        return "" if host in hosts else f'there is no host "{host}"{nearest(host, hosts)} (known: {", ".join(hosts)})'
    with_id = [f"{number}@{each.host}" for each in tables.containers.values() if each.ct == number]
    if len(with_id) > 1:
        return f"{number} is on several hosts: {', '.join(with_id)}; name one of these"
    return (
        "" if with_id or (number == LAB_CT and has_own_lab(tables)) else f"there is no container with the id {number}"
    )
