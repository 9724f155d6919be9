"""The lab from outside: bring it up, end it, ask about it. Cheap to import; what is heavy runs in its own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctdeploy.errors import HostError, UsageError
from ctdeploy.lab import layout, preflight
from ctdeploy.lab.folders import CACHE_MARK, STATE_MARK, is_ours, remove, take
from ctdeploy.lab.state import (
    Folder,
    Record,
    default_folder,
    locked,
    read_record,
    remove_record,
    write_record,
)

START_LIMIT_S = 60.0
KILL_LIMIT_S = 20.0
ADDRESS = "127.0.0.1"

Report = Callable[[str], None]


@dataclass(frozen=True)
class LabEndpoint:
    """Where the lab's SSH server listens and with what to log in."""

    address: str
    port: int
    user: str
    identity: Path
    known_hosts: Path


@dataclass(frozen=True)
class LabStatus:
    """What the lab is at this moment; the lists are empty when it is down.

    `containers` holds id, name and status of each, `commands` what its pct can do, `limits` what this machine, user or
    version cannot have, and why.
    """

    up: bool
    endpoint: LabEndpoint | None
    pid: int | None
    version: str
    venv: str
    state: Path
    cache: Path
    as_root: bool
    containers: list[dict[str, Any]]
    commands: list[str]
    limits: list[str]


def ensure_up(report: Report | None = None) -> LabEndpoint:
    """The running lab, started when it is not up. Several processes may call this at once.

    Raises HostError with the line that mends what is missing.
    """
    folder = default_folder()
    try:
        record = _usable(folder)
        if record is None:
            take(folder.path, STATE_MARK)
            take(folder.cache, CACHE_MARK)
            with locked(folder) as lock:
                record = _usable(folder) or _start(folder, lock, report)
    except OSError as error:
        text = f"the lab cannot use its folder {folder.path}: {error.strerror}"
        raise HostError(text, next="CTDEPLOY_LAB_DIR names another one") from error
    return _endpoint(folder, record)


def up(report: Report | None = None) -> LabEndpoint:
    """The same, for the command `lab up`."""
    return ensure_up(report)


def down(*, cache: bool = False) -> bool:
    """End the lab and remove everything of it but the cache folder; with `cache` that as well. True if one was up."""
    folder = default_folder()
    was_up = False
    if is_ours(folder.path, STATE_MARK):
        with locked(folder):
            was_up = _end(folder)
            remove(folder.path, STATE_MARK)
    if cache and is_ours(folder.cache, CACHE_MARK):
        remove(folder.cache, CACHE_MARK)
    return was_up


def reset(report: Report | None = None) -> LabEndpoint:
    """Everything back to new: the host, container 200, the keys. The port stays if it is free."""
    down()
    return ensure_up(report)


def status() -> LabStatus:
    """What runs and what cannot be had here; starts nothing."""
    folder = default_folder()
    record = _running(folder)
    described: dict[str, Any] = {"containers": [], "commands": [], "shifted_ids": False}
    if record:
        described = ask(do="describe")
    return LabStatus(
        up=record is not None,
        endpoint=_endpoint(folder, record) if record else None,
        pid=record.pid if record else None,
        version=record.version if record else "",
        venv=record.venv if record else "",
        state=folder.path,
        cache=folder.cache,
        as_root=os.geteuid() == 0,
        containers=described["containers"],
        commands=described["commands"],
        limits=_limits(described["shifted_ids"]) if record else [],
    )


def _limits(shifted_ids: bool) -> list[str]:
    limits = []
    if not shifted_ids:
        limits.append("other users in containers: only one id is mapped, so run_as, chown and push --user cannot work")
    who = "not built for namespace containers" if os.geteuid() == 0 else "needs root"
    limits.append(f"freezing a container: {who}")
    limits.append(f"memory limits: {who}; `memory` and `cores` in the .conf are shown and not enforced")
    limits.append(f"systemd in a container: {who}; its first process is a small shell script")
    return limits


def enter_argv(words: Sequence[str]) -> list[str]:
    """The argv that runs `words` (none: a login shell) as root of the lab's host. Raises HostError when it is down."""
    record = _running(default_folder())
    if record is None:
        raise HostError("the lab is not up", next="ctdeploy lab up")
    # -P: a module of the working folder must not come before ours.
    return [sys.executable, "-P", "-m", "ctdeploy.lab.enter", str(record.pid), "--", *words]


def enter_environment() -> dict[str, str]:
    """What `enter_argv` needs to find this package."""
    return _environment()


def ask(**request: Any) -> Any:
    """A question to the lab's own program in its host. Raises UsageError with its words when it refuses."""
    argv = enter_argv([layout.ADMIN, json.dumps(request)])
    done = subprocess.run(argv, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        raise HostError("the lab's host gave no answer", remote=done.stderr, next="ctdeploy lab reset")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer["ok"]


def add_container(vmid: int, hostname: str, like: int | None = None, start: bool = True) -> None:
    """Make a container, by default like 200 was when new. Raises UsageError."""
    ask(do="add", vmid=vmid, hostname=hostname, like=like, start=start)


def set_container(vmid: int, key: str, value: str) -> None:
    """Set a key of a container's .conf; an empty value removes it. Raises UsageError."""
    ask(do="set", vmid=vmid, key=key, value=value)


def remove_container(vmid: int) -> None:
    """Stop and remove a container. Raises UsageError."""
    ask(do="remove", vmid=vmid)


def _usable(folder: Folder) -> Record | None:
    record = read_record(folder)
    return record if record and record.usable() else None


def _running(folder: Folder) -> Record | None:
    record = read_record(folder)
    return record if record and record.ready and record.alive() else None


def _endpoint(folder: Folder, record: Record) -> LabEndpoint:
    return LabEndpoint(ADDRESS, record.port, "root", folder.identity, folder.known_hosts)


def _environment() -> dict[str, str]:
    """The environment of our own Python processes: ctdeploy must be found however this one found it."""
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _boot_environment() -> dict[str, str]:
    """As little as possible: what the lab's first process was started with can be read in the lab, secrets included."""
    kept = ("HOME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "PYTHONPATH")
    return {key: value for key, value in _environment().items() if key in kept}


def _start(folder: Folder, lock: int, report: Report | None) -> Record:
    """Start the lab; the lock is held, also by the starting lab, so that nobody meddles if we are killed meanwhile.

    Raises HostError.
    """
    preflight.require_lab()
    stale = _running(folder)
    if report and stale:
        report(f"starting the lab again, as the Python environment in its containers is gone: {stale.venv}")
    elif report:
        report("starting the lab, a stand-in for a Proxmox host on this machine (`ctdeploy lab down` removes it)")
    # That one, or one that was being started when its starter died: in the record, but never ready.
    _end(folder)
    read, write = os.pipe()
    argv = [
        sys.executable,
        "-m",
        "ctdeploy.lab.boot",
        str(folder.path),
        str(folder.cache),
        str(_port(folder)),
        str(write),
        str(lock),
    ]
    with folder.log.open("wb") as log:
        keeper = subprocess.Popen(
            argv,
            env=_boot_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write, lock],
            start_new_session=True,
        )
    os.close(write)
    answer = _await_report(read)
    if not answer:
        keeper.kill()
    keeper.wait()
    record = read_record(folder)
    if not answer.get("ok") or record is None:
        _end(folder)
        raise HostError(
            str(answer.get("error") or f"the lab ended while starting; its log is {folder.log}"),
            next=answer.get("next") or "ctdeploy lab down && ctdeploy lab up",
            remote="" if answer else folder.log.read_text(errors="replace")[-1000:],
        )
    record = replace(record, ready=True)
    write_record(folder, record)
    return record


def _await_report(handle: int) -> dict[str, Any]:
    """What the starting lab says; empty when it ended without a word or took too long."""
    import select

    poll = select.poll()
    poll.register(handle, select.POLLIN)
    said = b""
    try:
        while poll.poll(START_LIMIT_S * 1000):
            part = os.read(handle, 65536)
            said += part
            if not part:
                break
            try:
                return dict(json.loads(said))
            except ValueError:
                continue
        return {}
    finally:
        os.close(handle)


def _port(folder: Folder) -> int:
    """The port to try first: the last one, else one that follows from the folder, so that it is mostly the same."""
    record = read_record(folder)
    if record:
        return record.port
    seed = f"{os.getuid()} {folder.path}".encode()
    return 20_000 + zlib.crc32(seed) % 10_000


def _end(folder: Folder) -> bool:
    """Kill the lab that the record names, if it is that one; True when it was running. Raises HostError."""
    record = read_record(folder)
    if record is None or not record.alive():
        remove_record(folder)
        return False
    # Its first process takes everything with it, mounts included: there is nothing to ask for politely.
    if not record.process().kill(signal.SIGKILL, wait=KILL_LIMIT_S):
        raise HostError(f"the lab's first process {record.pid} does not end", next=f"ps -o stat,wchan -p {record.pid}")
    remove_record(folder)
    return True
