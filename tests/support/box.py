"""A folder that stands for a container: the session's two ends against each other, without SSH and without pct."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import tarfile
from pathlib import Path
from typing import Any

from ctdeploy.remote.payloads import procs
from ctdeploy.remote.session import Session
from tests.support.local import LocalTransport, local_place

SCRIPT = b'print("compiling forward (cudagraphs=False)", flush=True)\n'


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bundle(folder: Path, *contents: bytes) -> dict[str, Any]:
    path = folder / f"bundle-{sha(b''.join(contents))[:8]}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for content in contents:
            member = tarfile.TarInfo(sha(content))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(buffer.getvalue())
    return {"path": str(path), "size": len(buffer.getvalue()), "sha256": sha(buffer.getvalue())}


def manifest(**files: bytes) -> dict[str, Any]:
    entries = [
        {"path": f"{name}.py", "sha256": sha(content), "size": len(content), "mode": 0o644}
        for name, content in sorted(files.items())
    ]
    digest = sha(repr(entries).encode())
    return {"app": "app", "entry": "main.py", "digest": digest, "files": entries, "imports": [], "at": 1.0, "who": "t"}


class Box:
    """A folder that stands for a container."""

    def __init__(self, folder: Path) -> None:
        self.dest = folder / "opt"
        self.folder = folder
        self.transport = LocalTransport()
        self.keep = 100

    def session(self, who: str = "tester") -> Session:
        session = Session(self.transport, local_place(self.dest, sys.executable), "app", who)
        session.hello()
        return session

    def deploy(self, **files: bytes) -> dict[str, Any]:
        with self.session() as session:
            session.call("lock", why="test", wait_s=0)
            wanted = manifest(**files)
            placed = session.call("place", manifest=wanted, bundle=bundle(self.folder, *files.values()))
            stored = session.call("store", path=placed["path"], digest=wanted["digest"], facts={})
            session.call("activate", name=stored["name"], keep=self.keep)
        return stored

    def launch(self, session: Session, stored: dict[str, Any], **more: Any) -> dict[str, Any]:
        orders = {"entry": "main.py", "args": [], "env": {"PATH": "/usr/bin:/bin"}, "user": "root", "grace_s": 5}
        return session.call("launch", release=stored, **{**orders, **more})

    def supervisors(self) -> list[int]:
        """Supervisors of this box that live: they write errors into their run's folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str((process / "fd/2").readlink()).startswith(f"{self.dest}/app/runs/"):
                    found += [int(process.name)] if "closefd" in procs.command_of(int(process.name)) else []
        return found

    @property
    def active(self) -> str:
        return str((self.dest / "app" / "current").readlink())
