"""What a push is made of: the local source (`Source`) and the checked, immutable result (`Release`)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctdeploy.remote.payloads.markers import Forbidden, Hit


@dataclass(frozen=True)
class Source:
    """Local files of an app, before any check.

    `root` is the folder that paths in the release are relative to, `base` the one that `include` and `exclude` globs
    are relative to (the folder of hosts.toml). `markers` and `forbidden` globs see paths as they are in the release.
    """

    app: str
    root: Path
    entry: Path
    base: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    requires_python: str | None = None


@dataclass(frozen=True)
class ReleaseFile:
    """One file that travels. `path` is posix and relative to the root; `mode` is 0o644 or 0o755."""

    path: str
    source: Path
    size: int
    sha256: str
    mode: int


@dataclass(frozen=True)
class ExternalImport:
    """A module that is neither local nor of every standard library: the launch interpreter has to find it.

    `guarded`: the import stands in a function, a condition, a `try` that catches ImportError, or under TYPE_CHECKING,
    or in a module that is itself only imported so; the script may well start without it.
    """

    name: str
    path: str
    line: int
    guarded: bool


@dataclass(frozen=True)
class Warning:
    """Something that a push goes on with, at `path:line` (line 0: the file as a whole; path "": the release)."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}: " if self.line else f"{self.path}: " if self.path else ""
        return place + self.text


@dataclass(frozen=True)
class SyntaxProblem:
    """A file that this interpreter cannot compile; a newer launch interpreter may."""

    path: str
    line: int
    column: int
    message: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class GitState:
    """The git revision that the files come from. `changed` lists the files that travel and differ from it."""

    revision: str
    changed: tuple[str, ...]

    @property
    def dirty(self) -> bool:
        return bool(self.changed)


@dataclass(frozen=True)
class Release:
    """Checked files of an app, ready to be staged. `files` is sorted by path; `entry` is one of their paths."""

    app: str
    entry: str
    root: Path
    files: tuple[ReleaseFile, ...]
    markers: tuple[str, ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    found: dict[str, tuple[Hit, ...]] = field(default_factory=dict)
    external: tuple[ExternalImport, ...] = ()
    warnings: tuple[Warning, ...] = ()
    syntax_errors: tuple[SyntaxProblem, ...] = ()
    git: GitState | None = None
    requires_python: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the canonical list of files and the entry: equal digests deploy equal bytes."""
        content = {"entry": self.entry, "files": self._file_list()}
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """The part of RELEASE.json that this machine knows; JSON-able."""
        git = None
        if self.git is not None:
            git = {"revision": self.git.revision, "dirty": self.git.dirty, "changed": list(self.git.changed)}
        return {
            "app": self.app,
            "entry": self.entry,
            "digest": self.digest,
            "files": self._file_list(),
            "git": git,
            "requires_python": self.requires_python,
        }

    def file(self, path: str) -> ReleaseFile:
        """The file at `path`; KeyError if it does not travel."""
        for each in self.files:
            if each.path == path:
                return each
        raise KeyError(path)

    def _file_list(self) -> list[dict[str, Any]]:
        return [{"path": f.path, "size": f.size, "sha256": f.sha256, "mode": f.mode} for f in self.files]
