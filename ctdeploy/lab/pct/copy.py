"""`pct push` and `pct pull`: a file in or out of a running container, with everything that they do not tell.

Both exit 0 whatever happens to the copy, and a copy that stops early is not even mentioned (recorded).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from ctdeploy.lab import conf as confs
from ctdeploy.lab.containers.attach import Namespaces, drop_capabilities
from ctdeploy.lab.containers.base import Kind
from ctdeploy.lab.pct import tasks
from ctdeploy.lab.pct.errors import PctError, TaskError
from ctdeploy.lab.pct.getopt import Call
from ctdeploy.lab.pct.locks import config_lock
from ctdeploy.lab.pct.query import warn

BLOCK = 128 * 1024


def push(call: Call, kind: Kind) -> int:
    """pct push. Raises PctError only for what comes before the task: the lock and a container that is not running."""
    _, source, destination = call.arguments
    _copy_task(
        "push_file",
        call.vmid,
        kind,
        "can only push files to a running CT\n",
        lambda pid: _push(call, pid, source, destination),
    )
    return 0


def pull(call: Call, kind: Kind) -> int:
    """pct pull, likewise."""
    _, source, destination = call.arguments
    _copy_task(
        "pull_file",
        call.vmid,
        kind,
        "can only pull files from a running VM at /usr/share/perl5/PVE/CLI/pct.pm line 309.\n",
        lambda pid: _pull(call, pid, source, destination),
    )
    return 0


def _copy_task(task: str, vmid: int, kind: Kind, stopped: str, work: Callable[[int], None]) -> None:
    with config_lock(vmid):
        process = kind.init(vmid)
        if process is None:
            raise PctError(stopped)
        conf = confs.load(vmid)
        if conf:
            warn(conf)
        pid = process.pid
        tasks.run(task, vmid, lambda: work(pid))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _push(call: Call, pid: int, source: str, destination: str) -> None:
    try:
        reader = os.open(_bytes(source), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TaskError(f"failed to open {source} for reading") from error
    # As the container's root: names and symbolic links are the container's, and so are the limits of its ids.
    drop_capabilities()
    Namespaces(pid).enter()
    writer = _create(call, destination)
    _copy(reader, writer)


def _pull(call: Call, pid: int, source: str, destination: str) -> None:
    writer = _create(call, destination)
    reader = _open_inside(pid, source)
    _copy(reader, writer)


def _create(call: Call, destination: str) -> int:
    """Open the target as both do: options first, then truncate or make it, then owner and mode."""
    mode = _mode(call.options["perms"]) if "perms" in call.options else None
    uid = _number(call.options.get("user"), "passwd", "failed to get uid for")
    gid = _number(call.options.get("group"), "group", "failed to get gid for")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        writer = os.open(_bytes(destination), flags, 0o666)
    except OSError as error:
        raise TaskError(f"failed to create file: {destination}: {os.strerror(error.errno or 0)}") from error
    try:
        if uid is not None or gid is not None:
            os.fchown(writer, -1 if uid is None else uid, -1 if gid is None else gid)
    except OSError as error:
        raise TaskError(f"failed to change file owner: {os.strerror(error.errno or 0)}") from error
    if mode is not None:
        with contextlib.suppress(OSError):
            os.fchmod(writer, mode)
    return writer


def _mode(text: str) -> int:
    """Octal, with or without the leading 0; hexadecimal as 0x, binary as 0b (PVE 9)."""
    padded = text if text.startswith("0") else f"0{text}"
    low = padded.lower()
    for prefix, base in (("0x", 16), ("0b", 2)):
        digits = low.removeprefix(prefix)
        if digits != low and digits and all(digit in "0123456789abcdef"[:base] for digit in digits):
            return int(digits, base) & 0o7777
    if all(digit in "01234567" for digit in padded):
        return int(padded, 8) & 0o7777
    raise TaskError(f"invalid mode: '{padded}'")


def _number(name: str | None, table: str, complaint: str) -> int | None:
    """An id: digits, or a name looked up in the /etc of wherever this process is by now."""
    if name is None:
        return None
    if name and all(char in "0123456789" for char in name):
        return int(name)
    try:
        with open(f"/etc/{table}", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields = line.rstrip("\n").split(":")
                if fields[0] == name and len(fields) > 2:
                    return int(fields[2])
    except OSError:
        pass
    raise TaskError(f"{complaint}: {name}")


def _open_inside(pid: int, source: str) -> int:
    """Open a file of the container with the host's root's rights: a child joins the mounts and hands the file over."""
    import socket

    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            Namespaces(pid).enter_mounts()
            reader = os.open(_bytes(source), os.O_RDONLY | os.O_CLOEXEC)
            socket.send_fds(theirs, [b"+"], [reader])
        except OSError as error:
            theirs.send(f"{error.errno}".encode())
        finally:
            os._exit(0)
    theirs.close()
    try:
        said, handles, _, _ = socket.recv_fds(ours, 64, 1)
    except BaseException:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise
    os.waitpid(child, 0)
    ours.close()
    if not handles:
        raise TaskError(f"failed to open {source}: {os.strerror(int(said or b'5'))}")
    return handles[0]


def _copy(reader: int, writer: int) -> None:
    """Copy until the end, or until either side fails: then what was copied stays, and nobody is told."""
    with contextlib.suppress(OSError):
        while block := os.read(reader, BLOCK):
            while block:
                block = block[os.write(writer, block) :]
