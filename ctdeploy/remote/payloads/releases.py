"""Releases in the container: what is there, place, verify, activate. Numbers only grow, folders never change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import warnings
from typing import Any, Iterator, Optional

from ctdeploy.remote.payloads import markers
from ctdeploy.remote.payloads.account import child_identity, environment
from ctdeploy.remote.payloads.files import (
    Failure,
    append_line,
    files_below,
    fsync_folder,
    read_json,
    read_lines,
    read_object,
    replace_json,
    sha256_of,
    write_new,
)

LAYOUT = 1
RELEASE_NAME = re.compile(r"^(\d+)-([0-9a-f]{12})$")
MANIFEST = "RELEASE.json"
IMPORTS_S = 120.0


class Releases:
    """The releases of one app below `<dest>/<app>/`."""

    def __init__(self, dest: str, app: str) -> None:
        self.dest = dest
        self.home = os.path.join(dest, app)
        self.folder = os.path.join(self.home, "releases")
        self.current = os.path.join(self.home, "current")

    def prepare(self) -> None:
        """Make the folders; refuse a layout of a newer ctdeploy."""
        self.check_layout()
        os.makedirs(self.folder, exist_ok=True)
        if not os.path.exists(os.path.join(self.dest, "layout")):
            replace_json(os.path.join(self.dest, "layout"), LAYOUT)

    def check_layout(self) -> None:
        """Raises Failure("host") when a newer client made these folders."""
        layout = read_json(os.path.join(self.dest, "layout"))
        if isinstance(layout, int) and layout > LAYOUT:
            raise Failure(
                "host",
                f"{self.dest} has layout {layout}, made by a newer ctdeploy; this one knows layout {LAYOUT}",
                "pip install --upgrade ctdeploy",
            )

    def active(self, must_be_whole: bool = False) -> Optional[dict[str, Any]]:
        """The active release: name, number and its manifest; None when nothing was activated yet.

        One that has lost its manifest counts as none, so that a push can mend it; with `must_be_whole` it raises
        Failure("verify").
        """
        try:
            target = os.readlink(self.current)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Failure(
                "host",
                f"{self.current} is not a symlink, so it is not ours to switch",
                f"look at it, then move it away: mv {self.current} {self.current}.old",
            ) from error
        name = os.path.basename(target)
        manifest = self.manifest(name)
        if manifest is None:
            if not must_be_whole:
                return None
            raise Failure("verify", f"the active release {name} has no readable {MANIFEST}", "ctdeploy push --force")
        return {"name": name, "number": _number(name), "path": os.path.join(self.folder, name), "manifest": manifest}

    def manifest(self, name: str) -> Optional[dict[str, Any]]:
        """What RELEASE.json of a release says; None where it is no manifest."""
        found = read_object(os.path.join(self.folder, name, MANIFEST))
        return found if found and {"files", "digest", "entry"} <= found.keys() else None

    def names(self) -> list[str]:
        """Names of the complete releases, oldest first."""
        if not os.path.isdir(self.folder):
            return []
        return sorted((name for name in os.listdir(self.folder) if RELEASE_NAME.match(name)), key=_number)

    def missing(self, files: list[dict[str, Any]]) -> list[str]:
        """Which of these hashes no file of a release here really has. Manifests only tell where to look."""
        known = self._known()
        wanted = {entry["sha256"] for entry in files}
        return sorted(sha256 for sha256 in wanted if _whole_copy(known.get(sha256, []), sha256) is None)

    def sweep(self) -> None:
        """Remove what a killed push left. Only the holder of the lock may call this."""
        for name in os.listdir(self.folder):
            if name.startswith(".incoming-"):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def place(self, manifest: dict[str, Any], incoming: str, bundle: Optional[dict[str, Any]]) -> None:
        """Build the release's folder at `incoming` from the pushed bundle and from releases that have the same bytes.

        Raises Failure("verify") when the bundle is not, byte for byte, what was sent: `pct push` reports neither a
        short copy nor, by its exit code, a failed one.
        """
        blobs = _open_bundle(bundle) if bundle else {}
        known = self._known()
        os.mkdir(incoming, 0o755)
        for entry in manifest["files"]:
            path = os.path.normpath(os.path.join(incoming, entry["path"]))
            if not path.startswith(incoming + os.sep):
                raise Failure("verify", f"{entry['path']}: leads out of the release")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            data = blobs.get(entry["sha256"])
            if data is None:
                data = _whole_copy(known.get(entry["sha256"], []), entry["sha256"])
            if data is None or hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise Failure("verify", f"{entry['path']}: its content did not arrive", "ctdeploy push")
            write_new(path, data, entry["mode"])
        replace_json(os.path.join(incoming, MANIFEST), manifest)
        for folder, _, _ in os.walk(incoming):
            fsync_folder(folder)

    def store(self, incoming: str, digest: str) -> dict[str, Any]:
        """Give a verified release its number. Returns {name, number, path}."""
        number = 1 + max([_number(name) for name in self.names()] + [self._last_number()])
        name = f"{number}-{digest[:12]}"
        path = os.path.join(self.folder, name)
        os.rename(incoming, path)
        fsync_folder(self.folder)
        return {"name": name, "number": number, "path": path}

    def activate(self, name: str) -> None:
        """Point `current` at a release: one rename, so a reader sees the old one or the new one."""
        if not os.path.isdir(os.path.join(self.folder, name)):
            raise Failure("missing", f"there is no release {name}", "ctdeploy status")
        self.active()
        temporary = os.path.join(self.home, f".current-{os.getpid()}")
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(os.path.join("releases", name), temporary)
        os.rename(temporary, self.current)
        fsync_folder(self.home)

    def prune(self, keep: int, in_use: set[str]) -> list[str]:
        """Remove the oldest releases beyond `keep`, but for the active one and those that a run uses; their names."""
        active = self.active()
        kept = {active["name"]} if active else set()
        spare = [name for name in self.names() if name not in kept | in_use]
        gone = spare[: max(0, len(spare) + len(kept) - keep)]
        for name in gone:
            doomed = os.path.join(self.folder, f".incoming-pruned-{name}")
            os.rename(os.path.join(self.folder, name), doomed)  # swept by the next push if we are killed in between
            shutil.rmtree(doomed, ignore_errors=True)
            self.record("prune", release=name)
        return gone

    def record(self, event: str, **facts: Any) -> None:
        """One line of history, where there is room for it: what it tells of is done already."""
        with contextlib.suppress(OSError):
            append_line(os.path.join(self.home, "history.jsonl"), dict(facts, event=event, at=time.time()))

    def _last_number(self) -> int:
        lines = read_lines(os.path.join(self.home, "history.jsonl"))
        return max([number for line in lines if isinstance(number := line.get("number"), int)] + [0])

    def _known(self) -> dict[str, list[str]]:
        """Where each hash should lie, newest release first."""
        known: dict[str, list[str]] = {}
        for name in reversed(self.names()):
            manifest = self.manifest(name) or {"files": []}
            for entry in manifest["files"]:
                known.setdefault(entry["sha256"], []).append(os.path.join(self.folder, name, entry["path"]))
        return known


def compare(path: str, manifest: dict[str, Any]) -> list[str]:
    """How the files below `path` differ from the manifest, one sentence a file; empty when they are the same."""
    drift = []
    expected = {entry["path"]: entry for entry in manifest["files"]}
    there = set(files_below(path)) - {MANIFEST}
    for name in sorted(set(expected) - there):
        drift.append(f"{name}: missing")
    for name in sorted(there - set(expected)):
        drift.append(f"{name}: not part of the release")
    for name in sorted(set(expected) & there):
        full = os.path.join(path, name)
        entry = expected[name]
        if os.path.islink(full) or not os.path.isfile(full):
            drift.append(f"{name}: not a regular file")
            continue
        size = os.path.getsize(full)
        if size != entry["size"]:
            drift.append(f"{name}: {size} bytes, expected {entry['size']}")
        elif sha256_of(full) != entry["sha256"]:
            drift.append(f"{name}: content differs (SHA-256)")
    return drift


def compile_errors(path: str, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Syntax errors that this interpreter finds. In memory: `py_compile` would write into the release."""
    errors = []
    for entry in manifest["files"]:
        if not entry["path"].endswith(".py"):
            continue
        with open(os.path.join(path, entry["path"]), "rb") as file:
            source = file.read()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(source, entry["path"], "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 0
            text = (getattr(error, "text", None) or "").rstrip("\n")
            message = getattr(error, "msg", None) or f"{type(error).__name__}: {error}"
            errors.append({"path": entry["path"], "line": line, "text": text, "message": message})
    return errors


def search_markers(path: str, manifest: dict[str, Any], wanted: list[str], forbidden: list[Any]) -> dict[str, Any]:
    """What markers.search finds in the release's files, as plain values."""
    files = {}
    for entry in manifest["files"]:
        if entry["size"] > markers.SEARCH_LIMIT:
            continue
        with open(os.path.join(path, entry["path"]), "rb") as file:
            files[entry["path"]] = file.read()
    return markers.search(files, wanted, forbidden, python=[manifest["entry"]]).as_dict()


def imports_not_found(path: str, entry: str, names: list[str], user: str, variables: dict[str, str]) -> list[str]:
    """Top-level modules that the launch interpreter has no spec for, as the run's user and in its environment.

    Nothing of them is imported: find_spec of a top-level name runs no code of it.
    """
    if not names:
        return []
    code = (
        "import importlib.util, json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "def found(name):\n"
        "    try:\n"
        "        return importlib.util.find_spec(name) is not None\n"
        "    except (ImportError, ValueError):\n"
        "        return name in sys.modules\n"
        "print(json.dumps([n for n in json.loads(sys.argv[2]) if not found(n)]))\n"
    )
    folder = os.path.dirname(os.path.join(path, entry))
    # A child without -S: this session runs without site-packages.
    child = subprocess.run(
        [sys.executable, "-B", "-c", code, folder, json.dumps(names)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=IMPORTS_S,
        cwd="/",
        env=environment(user, variables),
        **child_identity(user),
    )
    if child.returncode != 0:
        raise Failure("verify", "the launch interpreter failed", remote=child.stderr.decode("utf-8", "replace"))
    missing: list[str] = json.loads(child.stdout.splitlines()[-1])
    return missing


def _whole_copy(paths: list[str], sha256: str) -> Optional[bytes]:
    """The content of the first of these files that still has the hash."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    return None


def _open_bundle(bundle: dict[str, Any]) -> dict[str, bytes]:
    path = bundle["path"]
    try:
        size = os.path.getsize(path)
    except FileNotFoundError:
        where = os.path.dirname(path)
        raise Failure(
            "verify", f"pct push left no file at {path} in the container", f"is there a writable {where} in it?"
        ) from None
    if size != bundle["size"]:
        raise Failure(
            "verify",
            f"pct push wrote {size} of {bundle['size']} bytes and did not say so",
            "is the container's disk full? ctdeploy push tries again",
        )
    if sha256_of(path) != bundle["sha256"]:
        raise Failure("verify", "what pct push wrote is not what was sent (SHA-256 differs)", "ctdeploy push")
    return dict(_members(path))


def _members(path: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, file.read()


def _number(name: str) -> int:
    match = RELEASE_NAME.match(name)
    return int(match.group(1)) if match else 0
