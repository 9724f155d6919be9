"""The session: one process in the container that serves one operation of one laptop, and leaves nothing when it ends.

It ends at the end of its input, or after a minute without a heartbeat, and holds the app's lock only that long.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import signal
import sys
import time
import traceback
from typing import Any, Callable, Optional

from ctdeploy.remote.payloads import releases as releases_module
from ctdeploy.remote.payloads.files import Failure
from ctdeploy.remote.payloads.lock import AppLock
from ctdeploy.remote.payloads.releases import Releases
from ctdeploy.remote.payloads.runs import ENDED, Runs
from ctdeploy.remote.payloads.wire import EndOfInput, Silence, Wire

STALE_S = 3600.0
INCOMING = "/var/tmp/.ctdeploy-in-"  # noqa: S108  (layout.INCOMING; this side only sweeps what matches)


_NEXT = {
    errno.ENOSPC: "the container's disk is full: df -h in it, then try again",
    errno.EDQUOT: "the container's disk quota is used up",
    errno.EROFS: "choose another dest in its [containers.…] table; this one is read-only",
    errno.EACCES: "choose another dest in its [containers.…] table",
}


class Session:
    """State of one session. Each method named `do_*` answers the request of that name."""

    def __init__(self, wire: Wire, payload: bytes) -> None:
        self.wire = wire
        self.payload = payload
        self.who = "somebody"
        self.app = ""
        self.releases: Releases
        self.runs: Runs
        self.lock: AppLock
        self.temporary: list[str] = []

    def do_hello(self, dest: str, app: str, who: str) -> dict[str, Any]:
        """Who we talk to, and what is there."""
        if sys.version_info < (3, 9):
            have = ".".join(map(str, sys.version_info[:3]))
            raise Failure(
                "host",
                f"{sys.executable} is Python {have}; 3.9 is the oldest that works",
                "name a newer one: python = ",
            )
        self.who, self.app = who, app
        self.releases = Releases(dest, app)
        self.runs = Runs(self.releases.home, app)
        self.lock = AppLock(os.path.join(self.releases.home, "lock"))
        self.releases.check_layout()
        return {
            "python": list(sys.version_info[:3]),
            "executable": sys.executable,
            "uid": os.getuid(),
            "active": self.releases.active(),
            "time": time.time(),
        }

    def do_lock(self, why: str, wait_s: float, incoming: Optional[str] = None) -> dict[str, Any]:
        """Take the app's lock, then sweep what killed operations left behind."""
        if incoming:
            self.temporary.append(incoming)
        self.releases.prepare()
        self.lock.acquire({"who": self.who, "why": why}, wait_s, self.wire.waiting)
        self.releases.sweep()
        # Others push while they wait for this lock, so only what is old is stale.
        for path in glob.glob(f"{INCOMING}{self.app}-*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(path).st_mtime > STALE_S:
                    _remove(path)
        return {"active": self.releases.active()}

    def do_missing(self, files: list[dict[str, Any]]) -> dict[str, Any]:
        return {"missing": self.releases.missing(files)}

    def do_place(self, manifest: dict[str, Any], bundle: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        incoming = os.path.join(self.releases.folder, f".incoming-{os.getpid()}-{manifest['digest'][:12]}")
        self.temporary.append(incoming)
        # By this clock, because the ages that people see are by this clock too.
        manifest = dict(manifest, at=time.time())
        self.releases.place(manifest, incoming, bundle)
        if bundle:
            _remove(bundle["path"])
        return {"path": incoming, "manifest": manifest}

    def do_verify(
        self,
        manifest: Optional[dict[str, Any]] = None,
        path: Optional[str] = None,
        markers: Optional[list[str]] = None,
        forbidden: Optional[list[Any]] = None,
        user: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
    ) -> dict[str, Any]:
        """Hash, compile and search a placed release, or the active one; with `user`, look for its imports too."""
        found = None
        if path is None or manifest is None:
            found = self._active()
            path, manifest = found["path"], found["manifest"]
        drift = releases_module.compare(path, manifest)
        gone = [line for line in drift if line.endswith(": missing")]
        imports = manifest.get("imports", []) if user is not None else []
        return {
            "release": found,
            "drift": drift,
            "errors": [] if gone else releases_module.compile_errors(path, manifest),
            "markers": None if gone else releases_module.search_markers(path, manifest, markers or [], forbidden or []),
            "imports_missing": releases_module.imports_not_found(
                path, manifest["entry"], imports, user or "root", env or {}
            ),
        }

    def do_content(self, path: str, limit: int) -> dict[str, Any]:
        """Up to `limit` + 1 bytes of one file of the active release, in the blob."""
        active = self._active()
        if path not in {entry["path"] for entry in active["manifest"]["files"]}:
            raise Failure("missing", f"{path} is not part of release {active['name']}")
        with open(os.path.join(active["path"], path), "rb") as file:
            return {"data": file.read(limit + 1)}

    def do_store(self, path: str, digest: str, facts: dict[str, Any]) -> dict[str, Any]:
        stored = self.releases.store(path, digest)
        self.releases.record("push", release=stored["name"], number=stored["number"], who=self.who, **facts)
        return stored

    def do_activate(self, name: str, keep: int) -> dict[str, Any]:
        """Switch, then remove what is older than the newest `keep` releases."""
        before = self.releases.active()
        self.releases.activate(name)
        self.releases.record("activate", release=name, who=self.who, before=before["name"] if before else None)
        runs = [self.runs.describe(run) for run in self.runs.names()]
        in_use = {run["release"] for run in runs if run["state"] not in ENDED and "release" in run}
        return {"pruned": self.releases.prune(keep, in_use)}

    def do_launch(self, **orders: Any) -> dict[str, Any]:
        run = self.runs.launch(dict(orders, who=self.who), self._supervisor())
        self.releases.record("run", run=run["run"], release=run["release"], who=self.who)
        return run

    def do_status(self, run: Optional[str] = None, newest: int = 10) -> dict[str, Any]:
        names = [self.runs.pick(run)] if run else self.runs.names()[-newest:]
        return {
            "active": self.releases.active(),
            "runs": [self.runs.describe(name) for name in names],
            "lock": self.lock.holder(),
            "time": time.time(),
        }

    def do_log(self, run: Optional[str], offset: int, wait_s: float = 0.0) -> dict[str, Any]:
        """Bytes of a run's log, in the blob."""
        name = self.runs.pick(run)
        return self.runs.read_log(name, offset, wait_s, self.wire.waiting)

    def do_last_lines(self, run: Optional[str], lines: int) -> dict[str, Any]:
        """Where the last so many lines of a run's log lie."""
        name = self.runs.pick(run)
        start, end = self.runs.last_lines(name, lines)
        return {"run": name, "start": start, "end": end}

    def do_run_file(self, run: str, path: str, limit: int) -> dict[str, Any]:
        """Up to `limit` bytes of a file of a run's folder, in the blob."""
        name = self.runs.pick(run)
        full = os.path.realpath(self.runs.path(name, path))
        if not full.startswith(os.path.realpath(self.runs.path(name)) + os.sep) or not os.path.isfile(full):
            raise Failure("missing", f"{name} has no file {path}", f"ctdeploy logs {name}")
        with open(full, "rb") as file:
            return {"data": file.read(limit)}

    def do_stop(self, run: Optional[str], grace_s: float) -> dict[str, Any]:
        name = self.runs.to_stop(run)
        before = self.runs.describe(name)
        self.runs.ask_to_stop(name, grace_s, self.who)
        self.releases.record("stop", run=name, who=self.who, was=before["state"])
        return {"run": before}

    def do_wait(self, run: str, wait_s: float) -> dict[str, Any]:
        """A run's state once it has ended, or after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            described = self.runs.describe(run)
            if described["state"] in ENDED:
                return {"run": described, "left": self.runs.left_over(run)}
            if time.monotonic() >= deadline or self.wire.waiting(0.1):
                return {"run": described, "left": []}

    def close(self) -> None:
        """Leave nothing behind."""
        for path in self.temporary:
            _remove(path)
        if hasattr(self, "lock"):
            self.lock.release()

    def _active(self) -> dict[str, Any]:
        active = self.releases.active(must_be_whole=True)
        if active is None:
            raise Failure("missing", f"no release of {self.app} is active here", "ctdeploy push")
        return active

    def _supervisor(self) -> bytes:
        return self.payload + b"\nstart('ctdeploy.remote.payloads.supervisor')\n"


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _serve(session: Session, wire: Wire) -> None:
    while True:
        request = wire.receive()
        op = request.pop("op")
        if op == "bye":
            return
        handler: Optional[Callable[..., dict[str, Any]]] = getattr(session, f"do_{op}", None)
        try:
            if handler is None:
                raise Failure("bug", f"the session knows no request {op}")
            body = handler(**request)
        except Failure as failure:
            wire.answer(
                {
                    "failure": failure.kind,
                    "message": failure.message,
                    "next": failure.next,
                    "facts": failure.facts,
                }
            )
            continue
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            words = f"{where}{error.strerror or error}"
            wire.answer({"failure": "host", "message": words, "next": _NEXT.get(error.errno or 0), "facts": {}})
            continue
        except Exception:
            wire.answer({"failure": "bug", "message": traceback.format_exc(), "next": None, "facts": {}})
            continue
        wire.answer(body, body.pop("data", b""))


def main(payload: bytes) -> None:
    """Serve until the client says bye, goes away or falls silent."""
    os.umask(0o022)  # the login on the host may have a stricter one, and releases are read by other users
    # A print of some library must not land between two frames.
    sink = os.dup(1)
    os.dup2(2, 1)
    wire = Wire(0, sink)
    session = Session(wire, payload)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        wire.nonce = wire.receive()["nonce"]
        _serve(session, wire)
    except (EndOfInput, Silence):
        pass
    finally:
        session.close()
