"""The lab's first processes: `python -m ctdeploy.lab.boot STATE CACHE PORT REPORT LOCK`, started by ctdeploy.lab.host.

The keeper (this program) makes keys, socket, namespaces and the host's root, starts the first process of the host in
them, writes down who that is, and ends. REPORT is told how it went, and LOCK is held until then. What remains is one
pid namespace: when its first process is gone the kernel ends everything else in it and drops every mount.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import asyncssh

from ctdeploy.lab import hostroot, layout, login, seed, server
from ctdeploy.lab.containers.attach import drop_capabilities
from ctdeploy.lab.interpreters import Interpreter, current, unreadable_by_others
from ctdeploy.lab.processes import boot_id, this_process
from ctdeploy.lab.state import Folder, Record, venv_mark, write_record
from ctdeploy.lab.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    make_private,
    pivot_into,
    sethostname,
    unshare,
)

NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID


class BootError(Exception):
    """Why the lab cannot come up, in one sentence, and the line that mends it."""

    def __init__(self, message: str, next: str | None = None) -> None:
        super().__init__(message)
        self.next = next


def main() -> None:
    state, cache, port = sys.argv[1:4]
    report, lock = int(sys.argv[4]), int(sys.argv[5])
    for handle in (report, lock):
        os.set_inheritable(handle, False)
    os.umask(0o022)
    try:
        _boot(Folder(Path(state), Path(cache)), int(port), report, lock)
    except BootError as error:
        _report(report, {"error": str(error), "next": error.next})
        sys.exit(1)
    except Exception as error:
        traceback.print_exc()
        _report(report, {"error": f"the lab could not come up: {error}", "next": None})
        sys.exit(1)


def _report(handle: int, message: dict[str, object]) -> None:
    os.write(handle, json.dumps(message).encode())


def _boot(folder: Folder, port: int, report: int, lock: int) -> None:
    interpreter = current(folder.spare_venv)
    package = str(Path(__file__).resolve().parent.parent)
    listener = _listen(port)
    port = listener.getsockname()[1]
    host_key, public = _keys(folder, port)
    _enter_namespaces()
    if seed.can_shift():
        seed.give_to_container(folder.cache)
    make_private()
    hostroot.build(str(folder.root), interpreter, package, str(folder.cache), public)
    mark = venv_mark(interpreter.venv)
    go_read, go_write = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(go_write)
        # Not before the record is written: nobody could find a lab that is in no record.
        if os.read(go_read, 1) == b"g":
            os.close(go_read)
            _first_process(str(folder.root), listener, host_key, interpreter, report, lock)
        os._exit(1)
    process = this_process(first)
    write_record(folder, Record(process.pid, process.started, boot_id(), port, _version(), interpreter.venv, mark))
    os.write(go_write, b"g")
    # The first process holds the report's other copy and writes to it when the host is up.
    os._exit(0)


def _version() -> str:
    from ctdeploy import __version__

    return __version__


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    return listener


def _keys(folder: Folder, port: int) -> tuple[asyncssh.SSHKey, str]:
    """The host's key and the client's public line; made once per state folder, written before anyone may look."""
    os.umask(0o077)
    for path in (folder.identity, folder.host_key):
        if not path.exists():
            server.new_key().write_private_key(path)
    host_key = asyncssh.read_private_key(folder.host_key)
    public = asyncssh.read_private_key(folder.identity).export_public_key().decode()
    host_public = host_key.export_public_key().decode().split()
    folder.known_hosts.write_text(f"[127.0.0.1]:{port} {host_public[0]} {host_public[1]}\n")
    os.umask(0o022)
    return host_key, public


def _enter_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            unshare(NAMESPACES)
            return
        except PermissionError:
            # Root of a container without CAP_SYS_ADMIN is no more than a user here.
            pass
    try:
        unshare(NAMESPACES | CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise BootError(f"this kernel does not let uid {uid} make namespaces ({error.strerror})") from error


def _first_process(
    root: str, listener: socket.socket, host_key: asyncssh.SSHKey, interpreter: Interpreter, report: int, lock: int
) -> None:
    """Pid 1 of the host: makes the root its own, starts the SSH server, then reaps until the server is gone."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            hostroot.mount_proc(root)
        except OSError as error:
            raise BootError(f"/proc of this machine is masked, so none can be mounted ({error.strerror})") from error
        pivot_into(root)
        sethostname(layout.NODE)
        drop_capabilities()
        if os.geteuid() == 0:
            with contextlib.suppress(PermissionError):
                # Refused in an ordinary user's namespace, where the groups he came with stay.
                os.setgroups([])
        os.environ.clear()
        os.environ.update(PATH=login.PATH, HOME="/root", LANG="C.UTF-8")
        seed.first_boot()
        ready_read, ready_write = os.pipe()
        serving = os.fork()
        if serving == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for handle in (report, lock):
                os.close(handle)
            server.serve(listener, host_key, lambda: _say_ready(ready_write))
            os._exit(1)
        os.close(ready_write)
        listener.close()
        seed.start_containers()
        _require_readable(interpreter)
        if os.read(ready_read, 1) != b"r":
            raise BootError("the SSH server of the lab ended while starting")
        os.close(ready_read)
        # Before the report: whoever waits for it holds the lock as well and goes on with it.
        os.close(lock)
        _report(report, {"ok": True})
        os.close(report)
    except BrokenPipeError:
        # Nobody waits any more: a lab that is not marked as ready would only be ended by the next one.
        os._exit(1)
    except BootError as error:
        _report(report, {"error": str(error), "next": error.next})
        os._exit(1)
    except BaseException as error:
        traceback.print_exc()
        _report(report, {"error": f"the lab could not come up: {error}", "next": None})
        os._exit(1)
    while os.wait()[0] != serving:
        pass
    os._exit(1)


def _require_readable(interpreter: Interpreter) -> None:
    """The containers' root, which is nobody on the machine, must be able to run the venv. Raises BootError."""
    if seed.can_shift() and not seed.interpreter_works():
        found = unreadable_by_others(interpreter)
        if found:
            path, top = found
            raise BootError(f"{path} is not readable for others, so containers cannot use it", f"chmod -R o+rX {top}")
        print("the venv does not run in container 200", file=sys.stderr)


def _say_ready(handle: int) -> None:
    os.write(handle, b"r")
    os.close(handle)


if __name__ == "__main__":
    main()
