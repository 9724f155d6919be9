"""How a container of namespaces comes to be: its monitor, its namespaces, its mounts, its first process."""

from __future__ import annotations

import contextlib
import os
import signal

from ctdeploy.lab import layout, tree
from ctdeploy.lab.containers import ids
from ctdeploy.lab.containers.attach import become_root, drop_capabilities
from ctdeploy.lab.containers.base import StartFailed
from ctdeploy.lab.containers.records import RUN, forget, written
from ctdeploy.lab.containers.spec import Mount, Spec
from ctdeploy.lab.processes import this_process
from ctdeploy.lab.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    PR_SET_CHILD_SUBREAPER,
    bind,
    make_private,
    mount,
    pivot_into,
    prctl,
    sethostname,
    unshare,
)

INIT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "container": "lxc",
    "TERM": "linux",
}


def start(spec: Spec) -> None:
    """Start it under a monitor of its own, and return once its first process runs. Raises StartFailed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        # Twice, so that the monitor is the host's own child and outlives `pct start`.
        if os.fork() == 0:
            _monitor(spec, write)
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    said = b""
    while part := os.read(read, 65536):
        said += part
    os.close(read)
    if said != b"ok":
        raise StartFailed(said.decode(errors="replace").splitlines() or ["the container's monitor died"])


def _monitor(spec: Spec, report: int) -> None:
    """Make the container, tell `report` how it went, and wait for its end. Never returns."""
    try:
        os.setsid()
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        for handle in os.listdir("/proc/self/fd"):
            if int(handle) > 2 and int(handle) != report:
                with contextlib.suppress(OSError):
                    os.close(int(handle))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # The container's first process is a grandchild and becomes ours when its parent ends.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        first = _make(spec, report)
        process = this_process(first)
        path = f"{RUN}/{spec.vmid}"
        with open(f"{path}.part", "w") as file:
            file.write(written(process))
        os.rename(f"{path}.part", path)
        os.write(report, b"ok")
        os.close(report)
        while True:
            try:
                if os.wait()[0] == first:
                    break
            except ChildProcessError:
                break
        forget(spec.vmid, process)
    except StartFailed as error:
        os.write(report, "\n".join(error.lines).encode())
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(report, f"do_start: {error}\n".encode())
    finally:
        os._exit(0)


def _make(spec: Spec, report: int) -> int:
    """Fork into new namespaces; the first process's pid once it is about to run its init. Raises StartFailed."""
    mapping = ids.mapping(spec.unprivileged)
    said_read, said_write = os.pipe()
    map_read, map_write = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            os.close(report)
            os.close(said_read)
            os.close(map_write)
            drop_capabilities()
            if mapping:
                unshare(CLONE_NEWUSER)
                os.write(said_write, b"U")
                if os.read(map_read, 1) != b"m":
                    os._exit(1)
                become_root()
            unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
            first = os.fork()
            if first == 0:
                _init(spec, said_write)
            os.write(said_write, f"P{first}\n".encode())
        except OSError as error:
            os.write(said_write, f"Edo_start: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(said_write)
    os.close(map_read)
    if mapping and os.read(said_read, 1) == b"U":
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{middle}/{name}", "w") as file:
                file.write(mapping)
        os.write(map_write, b"m")
    os.close(map_write)
    os.waitpid(middle, 0)
    # The first process holds the other end until its exec closes it, so the end of this is the start of init.
    said = b""
    while part := os.read(said_read, 65536):
        said += part
    os.close(said_read)
    pid = 0
    problems: list[str] = []
    for line in said.decode(errors="replace").splitlines():
        if line.startswith("P"):
            pid = int(line[1:])
        else:
            problems.append(line.removeprefix("E"))
    if problems or not pid:
        raise StartFailed(problems or ["do_start: the container died"])
    return pid


def _init(spec: Spec, report: int) -> None:
    """Pid 1 of the container: mount everything, move into it, run its init. Never returns."""
    try:
        make_private()
        root = spec.rootfs
        bind(root, root)
        tree.usr(root, layout.PRISTINE_USR)
        mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        with contextlib.suppress(OSError):
            tree.bind_into(root, "/sys", "sys")
        tree.dev(root)
        mount("tmpfs", f"{root}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
        os.mkdir(f"{root}/run/lock", 0o1777)
        for entry in spec.mounts:
            _mount_entry(spec, entry)
        pivot_into(root)
        sethostname(spec.hostname)
        os.setsid()
        os.umask(0o022)
        os.execve(spec.init[0], list(spec.init), INIT_ENVIRONMENT)
    except StartFailed as error:
        os.write(report, "".join(f"E{line}\n" for line in error.lines).encode())
    except OSError as error:
        os.write(report, f"Edo_start: {error}\n".encode())
    finally:
        os._exit(1)


def _mount_entry(spec: Spec, entry: Mount) -> None:
    """One mpN or lxc.mount.entry. A missing source of an optional entry leaves what `create` made, as lxc does."""
    target = f"{spec.rootfs}/{entry.target.lstrip('/')}"
    shown = f"/usr/lib/x86_64-linux-gnu/lxc/rootfs/{entry.target.lstrip('/')}"
    try:
        if entry.create == "dir":
            os.makedirs(target, exist_ok=True)
        elif entry.create == "file" and not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0))
        bind(entry.source, target, readonly=entry.readonly)
    except OSError as error:
        if entry.optional:
            return
        why = os.strerror(error.errno or 0)
        raise StartFailed(
            [
                f'safe_mount: 1334 {why} - Failed to mount "{entry.source}" onto "{shown}"',
                f'mount_entry: 2433 {why} - Failed to mount "{entry.source}" on "{shown}"',
                "lxc_setup: 4410 Failed to setup mount entries",
                f'do_start: 1272 Failed to setup container "{spec.vmid}"',
                "sync_wait: 34 An error occurred in another process (expected sequence number 3)",
            ]
        ) from error
