"""The few Linux calls that Python 3.11 lacks: namespaces, mounts, pivot_root. Errors are OSError with the path.

Constants are from linux/sched.h, linux/mount.h and linux/prctl.h.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_RELATIME = 0x200000

MNT_DETACH = 2

PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36

# mount_setattr has the number 442 on every architecture (Linux 5.12).
_NR_MOUNT_SETATTR = 442
_NR_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, path: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags))


def setns(fd: int, flags: int = 0) -> None:
    """setns(2). CLONE_NEWUSER and CLONE_NEWNS need a process of one thread."""
    _check(_libc.setns(fd, flags))


def sethostname(name: str) -> None:
    """sethostname(2)."""
    raw = os.fsencode(name)
    _check(_libc.sethostname(raw, len(raw)))


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def drop_bounding_capability(number: int) -> None:
    """Take a capability out of the bounding set; one that the kernel does not know is left alone."""
    _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(
            os.fsencode(source) or None,
            os.fsencode(target),
            os.fsencode(kind) or None,
            ctypes.c_ulong(flags),
            os.fsencode(data) or None,
        ),
        target,
    )


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), target)


def make_private() -> None:
    """Cut this mount namespace off from the one that it was made from, so that no mount of ours ever shows there."""
    mount("", "/", flags=MS_REC | MS_PRIVATE)


def bind(source: str, target: str, *, readonly: bool = False) -> None:
    """Bind `source` with all that is mounted below it onto `target`, which must exist.

    The recursive form is the only one that the kernel allows in a user namespace when there are mounts below.
    """
    mount(source, target, flags=MS_BIND | MS_REC)
    if readonly:
        make_readonly(target)


def make_readonly(target: str) -> None:
    """Make a mount and those below it read-only; before Linux 5.12 only the uppermost."""

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]

    attributes = Attributes(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    done = _libc.syscall(
        ctypes.c_long(_NR_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    if done == 0:
        return
    # In a user namespace the flags that the mount has are locked and must be repeated.
    has = os.statvfs(target).f_flag
    keep = has & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
    if has & 0x1000:  # ST_RELATIME
        keep |= MS_RELATIME
    mount("", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | keep)


def pivot_into(root: str) -> None:
    """Make `root` (a mount point) the root of this mount namespace and let go of the old one."""
    machine = os.uname().machine
    number = _NR_PIVOT_ROOT.get(machine)
    if number is None:
        raise OSError(38, f"pivot_root has no known number on {machine}")
    os.chdir(root)
    # Both arguments alike: the old root ends up mounted over the new one and is then detached (pivot_root(2)).
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), root)
    umount(".", MNT_DETACH)
    os.chdir("/")
