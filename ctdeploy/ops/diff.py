"""push --diff: how the local source differs from the active release, file by file."""

from __future__ import annotations

from dataclasses import dataclass

from ctdeploy.inventory.values import App, Container
from ctdeploy.ops.connection import connect, who
from ctdeploy.ops.push import PushOptions, plan
from ctdeploy.ops.reporter import Reporter
from ctdeploy.remote.session import Session

TEXT_LIMIT = 256 * 1024


@dataclass(frozen=True)
class FileDiff:
    """One file. `change`: added, removed or changed; the texts are None where they are not text or too long."""

    path: str
    change: str
    there: str | None
    here: str | None


@dataclass(frozen=True)
class DiffResult:
    """`release`: the active one, None where there is none yet."""

    app: str
    container: str
    release: str | None
    files: tuple[FileDiff, ...]


def diff(container: Container, app: App, options: PushOptions, reporter: Reporter) -> DiffResult:
    """Compare by hash; fetch the texts of what changed. Pushes nothing."""
    release = plan(container, app, options).release
    here = {file.path: file for file in release.files}
    with connect(container, reporter) as link, Session(link.transport, link.place, app.name, who()) as session:
        active = session.hello().active
        there = {entry["path"]: entry for entry in active["manifest"]["files"]} if active else {}
        files = []
        for path in sorted(set(here) | set(there)):
            if path in here and path in there and here[path].sha256 == there[path]["sha256"]:
                continue
            old = _remote_text(session, path) if path in there else None
            new = _text(here[path].source.read_bytes()) if path in here else None
            change = "changed" if path in here and path in there else "added" if path in here else "removed"
            files.append(FileDiff(path, change, old, new))
    return DiffResult(app.name, container.label, active["name"] if active else None, tuple(files))


def _remote_text(session: Session, path: str) -> str | None:
    _, data = session.call_with_data("content", path=path, limit=TEXT_LIMIT)
    return _text(data)


def _text(data: bytes) -> str | None:
    if len(data) > TEXT_LIMIT:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
