"""The hosts, containers and apps in force, and how a command line selects one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ctdeploy.errors import UsageError
from ctdeploy.inventory.find import Located, locate
from ctdeploy.inventory.parse import SELECTOR, Parsed, has_own_lab, nearest, read
from ctdeploy.inventory.tables import CT_MAX, CT_MIN, NAME, NAME_RULE, AppTable, ContainerTable, HostTable
from ctdeploy.inventory.values import (
    DEFAULT_PYTHON,
    LAB,
    LAB_CT,
    LAB_PYTHON,
    Api,
    App,
    Container,
    Defaults,
    Host,
    StartMarker,
)
from ctdeploy.remote.payloads.markers import Forbidden


def load(config: str | None = None, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Inventory:
    """Find, read and check hosts.toml. `config` is the value of `--config`. Raises ConfigError."""
    here = cwd or Path.cwd()
    located = locate(config, os.environ if env is None else env, here)
    inside = located.path.is_relative_to(here)
    return Inventory(read(located.path, str(located.path.relative_to(here)) if inside else None), located)


class Inventory:
    """A checked hosts.toml, with the built-in lab added."""

    def __init__(self, parsed: Parsed, located: Located) -> None:
        self.parsed = parsed
        self.located = located
        tables = parsed.tables
        base = located.base
        self.defaults = Defaults(tables.defaults.ct, tables.defaults.app)
        self.hosts = {LAB: Host(LAB, "127.0.0.1")}
        self.hosts |= {name: _host(name, table, base) for name, table in tables.hosts.items()}
        self.containers = {
            name: _container(name, table, self.hosts[table.host]) for name, table in tables.containers.items()
        }
        self.has_own_lab = has_own_lab(tables)
        if self.has_own_lab:
            self.containers[LAB] = Container(LAB, self.hosts[LAB], LAB_CT, LAB_PYTHON)
        self.apps = {name: _app(name, table, base) for name, table in tables.apps.items()}

    def container(self, selector: str | None = None) -> Container:
        """The container that a name, an id or `ID@HOST` selects; without one, the default.

        Names come first. The built-in lab container gives way to one of the file with the same id. `ID@HOST` may name
        a container that the file does not have; it gets the defaults. Raises UsageError.
        """
        if selector is None:
            return self._default_container()
        if selector in self.containers:
            return self.containers[selector]
        match = SELECTOR.match(selector)
        if match is None:
            known = ", ".join(self.containers)
            text = f'there is no container "{selector}"{nearest(selector, self.containers)} (known: {known})'
            raise UsageError(text, next="ctdeploy config show")
        number, host = int(match.group(1)), match.group(2)
        return self._by_id(number) if host is None else self._on_host(number, host)

    def app(self, name: str | None = None) -> App:
        """The app of that name; without one, the default. Raises UsageError."""
        if name is None:
            name = self.defaults.app or (next(iter(self.apps)) if len(self.apps) == 1 else None)
        if name is None:
            known = f" (known: {', '.join(self.apps)})" if self.apps else ""
            raise UsageError(f"which app? There is no default{known}", next="name a script, or use --app NAME")
        if name not in self.apps:
            known = ", ".join(self.apps) or "none"
            raise UsageError(f'there is no app "{name}"{nearest(name, self.apps)} (known: {known})')
        return self.apps[name]

    def app_for_path(self, path: str, cwd: Path, name: str | None = None) -> App:
        """The app whose entry is the script at `path`, else a new one named `name` or after the script's stem.

        The path is looked up from `cwd`, then from the folder of hosts.toml. Raises UsageError for a script that is not
        there, and for a name that belongs to another script or cannot be a folder.
        """
        script = self._script(path, cwd)
        owners = [app for app in self.apps.values() if app.entry.exists() and app.entry.samefile(script)]
        if name is not None:
            owners = [app for app in owners if app.name == name]
        elif len(owners) > 1:
            owners = [app for app in owners if app.name == self.defaults.app] or owners
            if len(owners) > 1:
                names = ", ".join(app.name for app in owners)
                raise UsageError(f"{path} is the entry of several apps: {names}", next=f"--app {owners[0].name}")
        if owners:
            return owners[0]
        name = script.stem if name is None else name
        if name in self.apps:
            text = f'the app "{name}" belongs to {self.apps[name].entry}, not to {script}'
            raise UsageError(text, next="use another --app NAME")
        if not NAME.match(name):
            raise UsageError(f"{name!r} cannot name an app: expected {NAME_RULE}", next="use --app NAME")
        return App(name, entry=script, root=script.parent, base=script.parent, configured=False)

    def _default_container(self) -> Container:
        if self.defaults.ct is not None:
            return self.container(self.defaults.ct)
        own = [each for name, each in self.containers.items() if not (self.has_own_lab and name == LAB)]
        candidates = own or list(self.containers.values())
        if len(candidates) == 1:
            return candidates[0]
        known = ", ".join(each.label for each in candidates)
        raise UsageError(f"which container? There is no default (known: {known})", next="use --ct NAME")

    def _by_id(self, number: int) -> Container:
        own = [c for name, c in self.containers.items() if c.ct == number and not (self.has_own_lab and name == LAB)]
        found = own or [each for each in self.containers.values() if each.ct == number]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(f"{each.address} ({each.label})" for each in found)
            raise UsageError(f"{number} is on several hosts: {listed}", next=f"use --ct {found[0].address}")
        hosts = [name for name in self.hosts if name != LAB] or [LAB]
        text = f"hosts.toml has no container with the id {number}"
        raise UsageError(text, next=f"use --ct {number}@{hosts[0]}, or add it to {self.parsed.file}")

    def _on_host(self, number: int, name: str) -> Container:
        if name not in self.hosts:
            raise UsageError(f'there is no host "{name}"{nearest(name, self.hosts)} (known: {", ".join(self.hosts)})')
        if not CT_MIN <= number <= CT_MAX:
            raise UsageError(f"a container's id is a number from {CT_MIN} to {CT_MAX}, not {number}")
        for container in self.containers.values():
            if (container.ct, container.host.name) == (number, name):
                return container
        return Container(None, self.hosts[name], number, LAB_PYTHON if name == LAB else DEFAULT_PYTHON)

    def _script(self, path: str, cwd: Path) -> Path:
        places = list(dict.fromkeys(_absolute(folder, path) for folder in (cwd, self.located.base)))
        for place in places:
            if place.is_file():
                return place
            if place.exists():
                raise UsageError(f"{place} is not a regular file")
        looked = " and ".join(str(place) for place in places)
        raise UsageError(
            f"there is no script {path}: looked for {looked}", next="name a Python script, or use --app NAME"
        )


def _absolute(folder: Path, path: str) -> Path:
    return Path(os.path.abspath(folder / Path(path).expanduser()))  # noqa: PTH100  (symlinks stay as they are)


def _host(name: str, table: HostTable, base: Path) -> Host:
    api = None
    if table.api is not None:
        ca_file = _absolute(base, table.api.ca_file) if table.api.ca_file else None
        api = Api(table.api.url, table.api.token_id, table.api.token_env, table.api.fingerprint, ca_file)
    identity = _absolute(base, table.identity) if table.identity else None
    return Host(name, table.address, table.port, table.user, table.become, identity, table.jump, table.staging, api)


def _container(name: str, table: ContainerTable, host: Host) -> Container:
    return Container(name, host, table.ct, table.python, table.run_as, dict(table.env), table.dest, tuple(table.tags))


def _app(name: str, table: AppTable, base: Path) -> App:
    entry = _absolute(base, table.entry)
    return App(
        name=name,
        entry=entry,
        root=_absolute(base, table.root) if table.root else entry.parent,
        base=base,
        include=tuple(table.include),
        exclude=tuple(table.exclude),
        requires_python=table.requires_python,
        requirements=_absolute(base, table.requirements) if table.requirements else None,
        markers=tuple(table.markers),
        forbidden=tuple(Forbidden(each.pattern, tuple(each.excepts)) for each in table.forbidden),
        markers_at_start=tuple(StartMarker(each.pattern, each.count) for each in table.markers_at_start),
        ready=table.ready,
        args=tuple(table.args),
        env=dict(table.env),
        keep=table.keep,
    )
