"""hosts.toml as text: what is in force (`config show`), the first file (`init`), the key tables of docs/hosts.md."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from ctdeploy.inventory.inventory import Inventory
from ctdeploy.inventory.parse import dotted
from ctdeploy.inventory.tables import (
    ApiTable,
    AppTable,
    ContainerTable,
    DefaultsTable,
    ForbiddenTable,
    HostTable,
    StartMarkerTable,
    Table,
)
from ctdeploy.inventory.values import LAB, LAB_CT, LAB_PYTHON

DEFAULT = "default"
BUILT_IN = "built in"

# What the key tables stand between in docs/hosts.md.
KEYS_START, KEYS_END = "<!-- keys -->", "<!-- /keys -->"

# The tables in the order of docs/hosts.md, with the heading of each.
REFERENCE: tuple[tuple[str, type[Table]], ...] = (
    ("[defaults]", DefaultsTable),
    ("[hosts.NAME]", HostTable),
    ("[hosts.NAME.api]", ApiTable),
    ("[containers.NAME]", ContainerTable),
    ("[apps.NAME]", AppTable),
    ("apps.NAME.forbidden[]", ForbiddenTable),
    ("apps.NAME.markers_at_start[]", StartMarkerTable),
)


class Setting(NamedTuple):
    """One value in force; `origin` is `file:line`, "default" or "built in"."""

    key: str
    value: Any
    origin: str


def effective(inventory: Inventory) -> list[Setting]:
    """Every key of every table with its value and where it is from. Secrets are not among them, only their names."""
    tables = inventory.parsed.tables
    found = list(_settings(inventory, tables.defaults, ("defaults",)))
    for kind in ("hosts", "containers", "apps"):
        for name, table in getattr(tables, kind).items():
            found += _settings(inventory, table, (kind, name))
        if kind == "containers" and inventory.has_own_lab:
            for key, value in (("host", LAB), ("ct", LAB_CT), ("python", LAB_PYTHON)):
                found.append(Setting(dotted((kind, LAB, key)), value, BUILT_IN))
    return found


def _settings(inventory: Inventory, table: Table, path: tuple[str, ...]) -> Iterator[Setting]:
    for name, field in type(table).model_fields.items():
        key = (*path, field.alias or name)
        value = getattr(table, name)
        if isinstance(value, Table):
            yield from _settings(inventory, value, key)
        elif key in inventory.parsed.lines:
            yield Setting(dotted(key), _plain(value), inventory.parsed.place(*key))
        elif value is not None:
            yield Setting(dotted(key), _plain(value), DEFAULT)


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return value.model_dump(by_alias=True)
    return [_plain(each) for each in value] if isinstance(value, list) else value


def reference() -> str:
    """The key tables of docs/hosts.md, in Markdown, from the descriptions of the models."""
    parts = []
    for heading, table in REFERENCE:
        rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for name, field in table.model_fields.items():
            if field.is_required():
                default = "required"
            elif field.default in (None, [], {}) or field.default is PydanticUndefined:
                default = ""
            else:
                default = f"`{json.dumps(field.default)}`"
            meaning = (field.description or "").replace("|", "\\|")
            rows.append(f"| `{field.alias or name}` | {_type_name(field.annotation)} | {default} | {meaning} |")
        parts.append(f"### `{heading}`\n\n{(table.__doc__ or '').strip()}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_name(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _type_name(get_args(annotation)[0])
    if origin is list:
        return f"list of {_type_name(get_args(annotation)[0])}s"
    if origin is dict:
        return f"table of {_type_name(get_args(annotation)[1])}s"
    if origin is Literal:
        return "text"
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return "table"
    return {str: "text", int: "number"}[annotation]


def first_hosts_toml(entry: str | None = None) -> str:
    """A first hosts.toml, commented. `entry`: a script to make an app of; its stem names the app."""
    script = entry or "train.py"
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", script.rsplit("/", 1)[-1].removesuffix(".py")).lstrip("-")[:64] or "app"
    app = f"""[apps.{name}]
entry = {_quoted(script)}
# root = "."                         # paths in a release are relative to it; default: the entry's folder
# include = ["recipes/*.toml"]       # files that travel besides the modules that the entry imports
# markers = ["cudagraphs=False"]     # what must stand in the code (comments do not count)
# forbidden = ['call:torch.compile(mode="reduce-overhead")']
# ready = "step 1 done"              # the log line after which a run counts as started
# args = ["--config", "recipes/first.toml"]
"""
    if entry is None:
        app = "".join(f"# {line}\n" for line in app.splitlines())
    return f"""# Where things are. `ctdeploy config show` prints what is in force; docs/hosts.md explains every key.

[defaults]
ct = "lab"{f"{chr(10)}app = {_quoted(name)}" if entry else ""}

# A real host. Without user, port and identity, ~/.ssh/config decides.
#
# [hosts.pve1]
# address = "pve1.example.net"
# user = "root"
#
# [containers.train]
# host = "pve1"
# ct = 200
# python = "/opt/venv/bin/python"    # the launch interpreter

# The host `lab` is built in: a stand-in for a Proxmox host on this machine, started when first needed.
[containers.lab]
host = "lab"
ct = 200
python = "/opt/venv/bin/python"

{app}"""


def _quoted(text: str) -> str:
    # A JSON string with ASCII only is a TOML basic string but for surrogate pairs, so keep what is not ASCII as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def with_reference(page: str) -> str:
    """docs/hosts.md with its key tables renewed."""
    before, _, rest = page.partition(KEYS_START)
    return before + KEYS_START + "\n" + reference() + KEYS_END + rest.partition(KEYS_END)[2]


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(with_reference(page.read_text(encoding="utf-8")), encoding="utf-8")
