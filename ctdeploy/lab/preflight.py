"""What this machine must have for the lab and for compiling in its container; each lack with the line that mends it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from ctdeploy.errors import HostError

APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
LIMIT = Path("/proc/sys/user/max_user_namespaces")
CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")


@dataclass(frozen=True)
class Lack:
    """Something that is missing, in one sentence, and the one line that mends it."""

    message: str
    mend: str


def check() -> list[Lack]:
    """Everything that the lab and a compile on CPU in its container need and this machine lacks."""
    return [*lab_lacks(), *compiler_lacks()]


def lab_lacks() -> list[Lack]:
    """What keeps the lab itself from coming up."""
    if sys.platform != "linux":
        return [
            Lack("The lab needs Linux, as its containers are made of Linux namespaces.", "use a Linux machine or VM")
        ]
    found = []
    if importlib.util.find_spec("asyncssh") is None:
        found.append(Lack("The lab's SSH server needs the package asyncssh.", "pip install 'ctdeploy[lab]'"))
    problem = _namespaces()
    if problem:
        found.append(problem)
    return found


def compiler_lacks() -> list[Lack]:
    """What torch.compile on CPU needs of this machine, as the container borrows it."""
    found = []
    if shutil.which("g++") is None:
        found.append(Lack("torch.compile on CPU needs a C++ compiler, and there is no g++.", "apt-get install -y g++"))
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        found.append(
            Lack(f"torch.compile on CPU needs Python's headers, and {header} is missing.",
                 f"apt-get install -y python{version}-dev")
        )  # fmt: skip
    return found


def require_lab() -> None:
    """Raises HostError for the first thing that keeps the lab from coming up."""
    for lack in lab_lacks():
        raise HostError(lack.message, next=lack.mend)


def _namespaces() -> Lack | None:
    """Try it in a child: reading settings alone does not tell what seccomp or a security module says."""
    import ctypes

    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        wanted = 0x00020000 | 0x20000000  # CLONE_NEWNS | CLONE_NEWPID
        done = libc.unshare(wanted) if os.geteuid() == 0 else -1
        if done != 0:
            done = libc.unshare(wanted | 0x10000000)  # CLONE_NEWUSER
        # AppArmor's restriction lets the namespace be made and takes its rights away: only a mount shows that.
        if done == 0:
            done = libc.mount(None, b"/", None, ctypes.c_ulong(0x44000), None)  # MS_REC | MS_PRIVATE
        os._exit(0 if done == 0 else 1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        return None
    what = "This machine does not let you make namespaces, which the lab's containers are made of."
    for path, bad, line in (
        (APPARMOR, "1", "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        (CLONE, "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        (LIMIT, "0", "sudo sysctl -w user.max_user_namespaces=10000"),
    ):
        if path.exists() and path.read_text().strip() == bad:
            return Lack(what, line)
    if os.geteuid() == 0:
        return Lack(
            what, "in a Docker container: run it with --privileged (or --cap-add SYS_ADMIN and no seccomp profile)"
        )
    return Lack(what, "run as root, or use a VM of your own")
