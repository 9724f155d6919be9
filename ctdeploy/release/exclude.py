"""Which files never travel by themselves."""

from __future__ import annotations

from pathlib import PurePosixPath

from ctdeploy.remote.payloads.markers import glob_match

# What interpreters, editors and version control leave behind.
NEVER = ("__pycache__", "*.pyc", "*.pyo", ".git", ".hg", ".svn", "*~", "*.swp", "*.egg-info", ".DS_Store")


def is_litter(path: str) -> bool:
    """Whether a file is what tools leave behind (`NEVER`); not even an include glob takes it."""
    return any(glob_match(glob, path) for glob in NEVER)


def is_hidden(path: str, glob: str = "") -> bool:
    """Whether a name of the path starts with a dot and the glob did not name one that does, as in a shell."""
    return any(map(_dotted, PurePosixPath(path).parts)) and not any(map(_dotted, PurePosixPath(glob).parts))


def _dotted(part: str) -> bool:
    return part.startswith(".") and part != ".."
