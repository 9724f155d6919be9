"""Where hosts.toml is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ctdeploy.errors import ConfigError

FILE_NAME = "hosts.toml"
VARIABLE = "CTDEPLOY_CONFIG"


@dataclass(frozen=True)
class Located:
    """A hosts.toml. `base` is the folder that its paths are relative to; `how` says why it is this one."""

    path: Path
    base: Path
    how: str
    built_in: bool = False


def locate(config: str | None, env: Mapping[str, str], cwd: Path) -> Located:
    """The hosts.toml in force: `--config`, CTDEPLOY_CONFIG, upwards from `cwd`, the user's folder, the built-in one.

    Raises ConfigError if one that was named is not there.
    """
    named = [("--config", config), (VARIABLE, env.get(VARIABLE))]
    for how, value in named:
        if value:
            path = cwd / Path(value).expanduser()
            if path.is_dir():
                path = path / FILE_NAME
            _must_be_a_file(path, f", named by {how},")
            return Located(path, path.parent, how)
    for folder in (cwd, *cwd.parents):
        path = folder / FILE_NAME
        if os.path.lexists(path):
            # One that cannot be read must not give way to another, which would mean another host.
            _must_be_a_file(path)
            return Located(path, folder, "found upwards from the working folder")
    path = user_file()
    if path.is_file():
        return Located(path, path.parent, "the user's config folder")
    return built_in()


def _must_be_a_file(path: Path, how: str = "") -> None:
    if path.is_file():
        return
    if os.path.lexists(path):
        raise ConfigError(f"{path}{how} is not a regular file")
    raise ConfigError(f"{path}{how} is not there", next="ctdeploy init")


def user_file() -> Path:
    """Where a user's own hosts.toml is looked for."""
    return Path(platformdirs.user_config_dir("ctdeploy", appauthor=False)) / FILE_NAME


def built_in() -> Located:
    """The hosts.toml that ships with the tool: the lab and the bundled trainer. In the wheel, or in the clone."""
    package = Path(__file__).resolve().parent
    base = package.parents[1]  # the folder that holds the packages `ctdeploy` and `trainer`
    shipped = package / "builtin.toml"
    return Located(shipped if shipped.is_file() else base / FILE_NAME, base, "built in", built_in=True)
