"""What hosts.toml means once it is checked: hosts, containers and apps with every default filled in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ctdeploy.release.model import Source
from ctdeploy.remote import layout
from ctdeploy.remote.payloads.markers import Forbidden

DEFAULT_DEST = layout.DEST
DEFAULT_PYTHON = "/usr/bin/python3"
DEFAULT_RUN_AS = "root"
DEFAULT_KEEP = 5

LAB = "lab"
LAB_CT = 200
LAB_PYTHON = "/opt/venv/bin/python"


@dataclass(frozen=True)
class Api:
    """Where the REST API of a host is, and the *name* of the variable that holds its token's secret."""

    url: str
    token_id: str
    token_env: str
    fingerprint: str | None = None
    ca_file: Path | None = None


@dataclass(frozen=True)
class Host:
    """A Proxmox VE node reached by SSH. `address` may be an alias of ~/.ssh/config; None values are left to it."""

    name: str
    address: str
    port: int | None = None
    user: str | None = None
    become: str | None = None
    identity: Path | None = None
    jump: str | None = None
    staging: str | None = None
    api: Api | None = None

    @property
    def is_lab(self) -> bool:
        """True for the built-in stand-in, which is started when first needed."""
        return self.name == LAB


@dataclass(frozen=True)
class Container:
    """An LXC container. `name` is None where only an ID@HOST was given."""

    name: str | None
    host: Host
    ct: int
    python: str = DEFAULT_PYTHON
    run_as: str = DEFAULT_RUN_AS
    env: dict[str, str] = field(default_factory=dict)
    dest: str = DEFAULT_DEST
    tags: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """`ID@HOST`, which names it in every hosts.toml."""
        return f"{self.ct}@{self.host.name}"

    @property
    def label(self) -> str:
        """Its name, or `ID@HOST` where it has none."""
        return self.name or self.address


@dataclass(frozen=True)
class StartMarker:
    """A regular expression that the log must match `count` times before a run counts as started."""

    pattern: str
    count: int = 1


@dataclass(frozen=True)
class App:
    """What is deployed. `entry`, `root` and `requirements` are absolute; `base` is what globs are relative to.

    `configured` is False for an app that was named by a path on the command line only.
    """

    name: str
    entry: Path
    root: Path
    base: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    requires_python: str | None = None
    requirements: Path | None = None
    markers: tuple[str, ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    markers_at_start: tuple[StartMarker, ...] = ()
    ready: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    keep: int = DEFAULT_KEEP
    configured: bool = True

    def source(self, markers: Iterable[str] = (), forbidden: Iterable[str] = ()) -> Source:
        """The source of a release, with the markers and forbidden patterns of the command line added."""
        return Source(
            app=self.name,
            root=self.root,
            entry=self.entry,
            base=self.base,
            include=self.include,
            exclude=self.exclude,
            markers=tuple(dict.fromkeys((*self.markers, *markers))),
            forbidden=tuple(dict.fromkeys((*self.forbidden, *(Forbidden(text) for text in forbidden)))),
            requires_python=self.requires_python,
        )


@dataclass(frozen=True)
class Defaults:
    """What is used where the command line names no container or app."""

    ct: str | None = None
    app: str | None = None
