"""The root file system of the lab's host: a small Debian-like node made of this machine's /usr and files of its own.

Everything happens inside the lab's own mount namespace. On the machine only the state folder's plain files are made.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from ctdeploy.lab import layout, tree
from ctdeploy.lab.interpreters import Interpreter, base_python
from ctdeploy.lab.syscalls import MS_NODEV, MS_NOEXEC, MS_NOSUID, bind, mount

# -IS: nothing of the caller's environment, no site-packages. The package is read-only here, so bytecode goes elsewhere.
PROGRAM = """\
#!{python} -IS
import sys
sys.path.insert(0, {code!r})
sys.pycache_prefix = {pycache!r}
from {module} import main
main()
"""


def build(root: str, interpreter: Interpreter, package: str, cache: str, public_key: str) -> None:
    """Lay out `root` and mount into it what the host needs. Call in a private mount namespace; /proc comes later.

    `package` is the folder of the ctdeploy package. Raises OSError naming the path.
    """
    os.makedirs(root, exist_ok=True)
    os.chmod(root, 0o755)
    bind(root, root)
    tree.folders(root)
    tree.accounts(root)
    mount("tmpfs", f"{root}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    os.makedirs(f"{root}/run/lock/lxc")
    os.chmod(f"{root}/run/lock", 0o1777)
    os.mkdir(f"{root}/run/lxc", 0o755)
    os.mkdir(f"{root}/run/pve", 0o755)
    tree.usr(root, "/usr")
    tree.bind_into(root, "/usr", layout.PRISTINE_USR)
    with contextlib.suppress(OSError):
        # A machine that is itself a container may not show its /sys; little here needs it.
        tree.bind_into(root, "/sys", "sys")
    tree.dev(root)
    _interpreter(root, interpreter, package)
    tree.bind_into(root, cache, layout.CACHE, readonly=False)
    _programs(root, _public_python(interpreter))
    _node(root, public_key)


def mount_proc(root: str) -> None:
    """Mount /proc for the pid namespace of the caller. Raises OSError where the machine's own /proc is masked."""
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _interpreter(root: str, interpreter: Interpreter, package: str) -> None:
    """The venv and its base: for containers at fixed paths, and, as the lab's own programs need it, at their own."""
    tree.bind_into(root, interpreter.venv, layout.VENV)
    for number, source in enumerate(interpreter.bases.values()):
        tree.bind_into(root, source, f"{layout.BASES}/{number}")
    targets = {f"{layout.BASES}/{number}": target for number, target in enumerate(interpreter.bases)}
    tree.write(f"{root}{layout.INTERPRETER}", json.dumps(targets))
    tree.bind_into(root, package, f"{layout.CODE}/ctdeploy")
    own = {interpreter.venv: interpreter.venv, **interpreter.bases}
    for path in (package, *sys.path):
        inside = any(path == other or path.startswith(f"{other}/") for other in ("/usr", *own))
        # A folder that the lab's own root lies in would be mounted into itself.
        if (
            path.startswith("/")
            and os.path.exists(path)
            and not inside
            and not f"{root}/".startswith(f"{path.rstrip('/')}/")
        ):
            own[path] = path
    for target, source in own.items():
        tree.bind_into(root, source, target)


def _public_python(interpreter: Interpreter) -> str:
    """The base interpreter by a path that every user of the host may walk, unlike one below root's home."""
    python = base_python()
    for number, source in enumerate(interpreter.bases.values()):
        if python.startswith(f"{source}/"):
            return f"{layout.BASES}/{number}{python.removeprefix(source)}"
    return python


def _programs(root: str, python: str) -> None:
    """Put `pct` at /usr/sbin/pct: a tmpfs there, whose other names lead to the machine's own programs."""
    folder = os.path.realpath("/usr/sbin")
    mount("tmpfs", root + folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    inside = layout.PRISTINE_USR + folder.removeprefix("/usr")
    for name in os.listdir(folder):
        if name != "pct":
            os.symlink(f"{inside}/{name}", f"{root}{folder}/{name}")
    for path, module in ((f"{folder}/pct", "ctdeploy.lab.pct.main"), (layout.ADMIN, "ctdeploy.lab.admin")):
        script = PROGRAM.format(python=python, code=layout.CODE, pycache=layout.PYCACHE, module=module)
        tree.write(root + path, script, 0o755)
    os.makedirs(f"{root}{layout.PYCACHE}", exist_ok=True)


def _node(root: str, public_key: str) -> None:
    """What a Proxmox VE node has: its part of /etc/pve, the task logs, the storage `local`, root's SSH keys."""
    pve = f"{root}/etc/pve"
    os.makedirs(f"{pve}/nodes/{layout.NODE}/lxc", exist_ok=True)
    os.makedirs(f"{pve}/priv", mode=0o700, exist_ok=True)
    tree.link(f"{pve}/local", f"nodes/{layout.NODE}")
    tree.link(f"{pve}/lxc", f"nodes/{layout.NODE}/lxc")
    os.makedirs(f"{root}/var/log/pve/tasks", exist_ok=True)
    os.makedirs(f"{root}/var/lib/vz/images", exist_ok=True)
    os.makedirs(f"{root}/var/lib/lxc", exist_ok=True)
    tree.write(f"{pve}/priv/authorized_keys", public_key, 0o600)
    os.makedirs(f"{root}/root/.ssh", mode=0o700, exist_ok=True)
    # On a node root's keys are the cluster's: this file is a link into the cluster's file system.
    tree.link(f"{root}/root/.ssh/authorized_keys", "/etc/pve/priv/authorized_keys")
    tree.write(f"{root}/etc/hostname", f"{layout.NODE}\n")
    tree.write(f"{root}/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {layout.NODE}\n")
