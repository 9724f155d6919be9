"""The tables of hosts.toml as pydantic models: types, limits, and the text of each key in docs/hosts.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ctdeploy.inventory.values import DEFAULT_DEST, DEFAULT_KEEP, DEFAULT_PYTHON, DEFAULT_RUN_AS
from ctdeploy.remote.payloads.markers import read_pattern

CT_MIN, CT_MAX = 100, 999_999_999

# Names become folder names, table keys and parts of `ID@HOST`; a container's must not look like an id or a range.
NAME = re.compile(r"(?!layout\Z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
CONTAINER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
NAME_RULE = "letters, digits, '_', '.' and '-', at most 64, not starting with '.' or '-', and not \"layout\""
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?\Z|\d+\Z")
# What the tool sets itself (the run contract), so that a value here would be lost without a word.
RESERVED_ENV = re.compile(r"CTDEPLOY_(RUN_DIR|RUN_ID|RELEASE)\Z|PYTHONPYCACHEPREFIX\Z")


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("expected a text that is not empty")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("expected a text without control characters")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or value.rstrip("/") == "" or ".." in value.split("/"):
        raise ValueError("expected an absolute path in the container, without '..'")
    return value.rstrip("/")


def _user(value: str) -> str:
    if not USER.match(value):
        raise ValueError("expected a user name or a number")
    return value


def _tag(value: str) -> str:
    if not NAME.match(value):
        raise ValueError(f"expected {NAME_RULE}")
    return value


def _env(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not ENV_NAME.match(name):
            raise ValueError(f"expected names of letters, digits and '_', found {name!r}")
        if RESERVED_ENV.match(name):
            raise ValueError(f"{name} is set by ctdeploy itself")
        if "\0" in text:
            raise ValueError(f"{name} holds a NUL character")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected no NUL character: no program can be given one")
    return value


def _pattern(value: str) -> str:
    read_pattern(value)
    return value


def _regex(value: str) -> str:
    try:
        re.compile(_text(value))
    except re.error as error:
        raise ValueError(f"expected a regular expression: {error}") from None
    return value


def _version(value: str) -> str:
    try:
        SpecifierSet(_text(value))
    except InvalidSpecifier:
        raise ValueError("expected a version clause such as '>=3.11'") from None
    return value


def _https(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme != "https" or not parts.hostname or parts.username or parts.password:
        raise ValueError("expected https://NAME:PORT without a user or password")
    return value


def _selector(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _wrapped(value: Any) -> Any:
    return {"pattern": value} if isinstance(value, str) else value


def _ascii(value: str) -> str:
    if not value.isascii():
        raise ValueError("expected ASCII: it is an argument of pct, which destroys other characters")
    return value


Text = Annotated[str, AfterValidator(_text)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
PctPath = Annotated[AbsolutePath, AfterValidator(_ascii)]
Env = Annotated[dict[str, str], AfterValidator(_env)]
MarkerText = Annotated[str, AfterValidator(_pattern)]
Regex = Annotated[str, AfterValidator(_regex)]


class Table(BaseModel):
    """A table of hosts.toml: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DefaultsTable(Table):
    """What is used where the command line names no container or app."""

    ct: Annotated[Text, BeforeValidator(_selector)] | None = Field(
        default=None, description="The container: a name, an id, or `ID@HOST`."
    )
    app: Text | None = Field(default=None, description="The app.")


class ApiTable(Table):
    """The REST API of a host (optional)."""

    url: Annotated[Text, AfterValidator(_https)] = Field(description="Where it is, such as `https://pve1:8006`.")
    token_id: Text = Field(description="The token, such as `deploy@pve!ctdeploy`.")
    token_env: Annotated[Text, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        description="The environment variable that holds the token's secret. The secret itself is never written here."
    )
    fingerprint: Text | None = Field(default=None, description="SHA-256 fingerprint of the API's certificate.")
    ca_file: Text | None = Field(
        default=None, description="Certificate file to check the API with, instead of a fingerprint."
    )

    @model_validator(mode="after")
    def _one_way(self) -> ApiTable:
        if self.fingerprint and self.ca_file:
            raise ValueError("expected fingerprint or ca_file, found both")
        return self


class HostTable(Table):
    """A Proxmox VE node reached by SSH. The host `lab` is built in and needs no table."""

    address: Text = Field(description="Host name, address, or alias of ~/.ssh/config.")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(default=None, description="SSH port.")
    user: Text | None = Field(default=None, description="SSH user.")
    become: Literal["sudo"] | None = Field(
        default=None, description='`"sudo"`: pct is called as `sudo -n /usr/sbin/pct`.'
    )
    identity: Text | None = Field(default=None, description="Private key file.")
    jump: Text | None = Field(default=None, description="Host to jump through, as ssh's ProxyJump.")
    staging: PctPath | None = Field(default=None, description="Folder on the host for files on their way.")
    api: ApiTable | None = Field(default=None, description="The host's REST API.")


class ContainerTable(Table):
    """An LXC container."""

    host: Text = Field(description="The host that it is on: `lab`, or a table `[hosts.NAME]`.")
    ct: Annotated[int, Field(ge=CT_MIN, le=CT_MAX)] = Field(description="Its id on that host.")
    tags: list[Annotated[str, AfterValidator(_tag)]] = Field(default=[], description="Words to select containers by.")
    python: PctPath = Field(default=DEFAULT_PYTHON, description="The launch interpreter.")
    run_as: Annotated[str, AfterValidator(_user)] = Field(
        default=DEFAULT_RUN_AS, description="The user that runs belong to."
    )
    env: Env = Field(default={}, description="Environment of every run.")
    dest: AbsolutePath = Field(default=DEFAULT_DEST, description="The folder that apps are put in.")


class StartMarkerTable(Table):
    """What a run's log has to show before the run counts as started."""

    pattern: Regex = Field(description="A regular expression.")
    count: Annotated[int, Field(ge=1)] = Field(default=1, description="How many times it has to match.")


class ForbiddenTable(Table):
    """What must not stand in the code. A text alone is short for a table with that pattern."""

    pattern: MarkerText = Field(description="A text, or `call:NAME(KEYWORD=VALUE)`.")
    excepts: list[Text] = Field(
        default=[], alias="except", description="Globs of files (paths in the release) that may."
    )


class AppTable(Table):
    """What is deployed. Paths are relative to the folder of hosts.toml."""

    entry: Text = Field(description="The script that is run.")
    root: Text | None = Field(
        default=None, description="Paths in the release are relative to it. Default: the entry's folder."
    )
    include: list[Text] = Field(
        default=[], description="Globs of files that travel besides the modules that the entry imports."
    )
    exclude: list[Text] = Field(default=[], description="Globs of files that never travel.")
    requires_python: Annotated[str, AfterValidator(_version)] | None = Field(
        default=None, description="Versions of the launch interpreter that will do, such as `>=3.11`."
    )
    requirements: Text | None = Field(default=None, description="Requirements file of the launch environment.")
    markers: list[MarkerText] = Field(
        default=[],
        description="What must stand in the code: texts, or `call:NAME(KEYWORD=VALUE)`; `@GLOB` narrows to files.",
    )
    forbidden: list[Annotated[ForbiddenTable, BeforeValidator(_wrapped)]] = Field(
        default=[], description="What must not stand in the code: like markers, or a table with `pattern` and `except`."
    )
    markers_at_start: list[Annotated[StartMarkerTable, BeforeValidator(_wrapped)]] = Field(
        default=[], description="What the log has to show when the run starts: tables with `pattern` and `count`."
    )
    ready: Regex | None = Field(
        default=None, description="Regular expression that the log matches once the run is ready."
    )
    args: list[Annotated[str, AfterValidator(_no_nul)]] = Field(
        default=[], description="Arguments of the script where the command line gives none."
    )
    env: Env = Field(default={}, description="Environment of every run of this app; wins over the container's.")
    keep: Annotated[int, Field(ge=1)] = Field(default=DEFAULT_KEEP, description="How many releases are kept.")


class HostsToml(Table):
    """A whole hosts.toml."""

    defaults: DefaultsTable = Field(default=DefaultsTable(), description="What is used where nothing is named.")
    hosts: dict[str, HostTable] = Field(default={}, description="Hosts by name.")
    containers: dict[str, ContainerTable] = Field(default={}, description="Containers by name.")
    apps: dict[str, AppTable] = Field(default={}, description="Apps by name.")


def known_keys(path: Iterable[str | int]) -> list[str]:
    """The keys that the table at a path such as ("apps", "train", "forbidden", 0) may have; none if it is no table."""
    annotation: Any = HostsToml
    for part in path:
        inner = model_in(annotation)
        if inner is not None:
            fields = {field.alias or name: field for name, field in inner.model_fields.items()}
            annotation = fields[str(part)].annotation if part in fields else None
        else:
            annotation = (get_args(_bare(annotation)) or (None,))[-1]
    found = model_in(annotation)
    return [field.alias or name for name, field in found.model_fields.items()] if found is not None else []


def model_in(annotation: Any) -> type[Table] | None:
    """The table that an annotation stands for, optional or not; None for lists and plain values."""
    bare = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, Table) else None


def _bare(annotation: Any) -> Any:
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return annotation
