"""The state folder of the lab: what lies where, and the record of the one that runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from platformdirs import user_cache_path, user_state_path

from ctdeploy.lab.folders import LOCK, STATE_MARK, take
from ctdeploy.lab.processes import Process, boot_id


@dataclass(frozen=True)
class Folder:
    """Paths in the state folder. Everything here is gone after `lab down`; the cache is elsewhere and stays."""

    path: Path
    cache: Path

    @property
    def lock(self) -> Path:
        return self.path / LOCK

    @property
    def record(self) -> Path:
        return self.path / "lab.json"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def identity(self) -> Path:
        return self.path / "id_ed25519"

    @property
    def host_key(self) -> Path:
        return self.path / "host_key"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def root(self) -> Path:
        """The root file system of the lab's host."""
        return self.path / "host"

    @property
    def spare_venv(self) -> Path:
        return self.path / "venv"


@dataclass(frozen=True)
class Record:
    """The running lab: pid and start time of its first process as seen from the machine, and this boot's id.

    `venv` is what containers have at /opt/venv, `venv_mark` tells it from one made anew at that path. `ready` once the
    lab has come up in full; before that it is only in the record so that it can be ended.
    """

    pid: int
    started: int
    boot: str
    port: int
    version: str = ""
    venv: str = ""
    venv_mark: str = ""
    ready: bool = False

    def process(self) -> Process:
        return Process(self.pid, self.started)

    def usable(self) -> bool:
        """Up, and with its venv still there: a mounted folder that was removed is an empty shell."""
        return self.ready and self.alive() and venv_mark(self.venv) == self.venv_mark

    def alive(self) -> bool:
        return self.boot == boot_id() and self.process().alive()


def venv_mark(venv: str) -> str:
    """Changes when the venv is made anew, not when packages are installed; empty when there is none."""
    try:
        found = os.stat(f"{venv}/pyvenv.cfg")
    except OSError:
        return ""
    return f"{found.st_dev}.{found.st_ino}.{found.st_mtime_ns}"


def default_folder() -> Folder:
    """CTDEPLOY_LAB_DIR and CTDEPLOY_LAB_CACHE, or the user's state and cache folders."""
    state = os.environ.get("CTDEPLOY_LAB_DIR")
    cache = os.environ.get("CTDEPLOY_LAB_CACHE")
    return Folder(
        path=Path(state).absolute() if state else user_state_path("ctdeploy") / "lab",
        cache=Path(cache).absolute() if cache else user_cache_path("ctdeploy") / "lab",
    )


def read_record(folder: Folder) -> Record | None:
    """The record of the last lab that came up, running or not; None when there is none that can be read.

    One that another version wrote is read as far as it is known: its lab must still be found to be ended.
    """
    try:
        found = json.loads(folder.record.read_text())
        return Record(**{field.name: found[field.name] for field in fields(Record) if field.name in found})
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_record(folder: Folder, record: Record) -> None:
    """Replace the record in one step."""
    part = folder.record.with_suffix(".part")
    part.write_text(json.dumps(asdict(record)))
    part.rename(folder.record)


def remove_record(folder: Folder) -> None:
    folder.record.unlink(missing_ok=True)


@contextmanager
def locked(folder: Folder) -> Iterator[int]:
    """Hold the lab's lock: up, down and reset of one state folder never overlap.

    Yields the lock's descriptor: a process that inherits it holds the lock too, until it closes it or ends.
    `down` removes the folder with the lock in it, so a lock that was got is looked at again: it must be the file that
    stands there now.
    """
    while True:
        take(folder.path, STATE_MARK)
        try:
            handle = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                same = os.fstat(handle).st_ino == folder.lock.stat().st_ino
            except FileNotFoundError:
                same = False
            if same:
                yield handle
                return
        finally:
            os.close(handle)
