"""Helpers to lay out a root file system: files, mount points and the parts of the machine that go in."""

from __future__ import annotations

import os

from ctdeploy.lab import layout
from ctdeploy.lab.syscalls import MS_NOEXEC, MS_NOSUID, bind, mount


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file of the skeleton, its folders included."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)


def write_once(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file that is the user's from then on: never over what is there."""
    if not os.path.lexists(path):
        write(path, text, mode)


def link(path: str, target: str) -> None:
    """Make a symbolic link unless something stands there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.lexists(path):
        os.symlink(target, path)


def mount_point(source: str, target: str) -> None:
    """Make the file or folder that `source` can be mounted on."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def bind_into(root: str, source: str, name: str, *, readonly: bool = True) -> None:
    """Bind `source` at `root`/`name`, making the mount point."""
    target = f"{root}/{name.lstrip('/')}"
    mount_point(source, target)
    bind(source, target, readonly=readonly)


def usr(root: str, source: str) -> None:
    """Put the machine's /usr and what belongs to it into a root, read-only."""
    bind_into(root, source, "usr")
    for name in layout.TOP_OF_USR:
        if os.path.islink(f"/{name}"):
            link(f"{root}/{name}", os.readlink(f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            bind_into(root, f"/{name}", name)
    for name in layout.SHARED_ETC:
        if os.path.exists(f"/etc/{name}"):
            bind_into(root, os.path.realpath(f"/etc/{name}"), f"etc/{name}")
    if os.path.exists("/usr/lib/os-release"):
        link(f"{root}/etc/os-release", "../usr/lib/os-release")


def dev(root: str) -> None:
    """A small /dev of its own: the harmless nodes, a devpts of its own and a shared-memory tmpfs."""
    mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=1m")
    for name in layout.DEVICES:
        bind_into(root, f"/dev/{name}", f"dev/{name}", readonly=False)
    os.mkdir(f"{root}/dev/pts")
    mount("devpts", f"{root}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir(f"{root}/dev/shm", 0o1777)
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID, "mode=1777")
    link(f"{root}/dev/ptmx", "pts/ptmx")
    link(f"{root}/dev/fd", "/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        link(f"{root}/dev/{name}", f"/proc/self/fd/{number}")


PASSWD = """\
root:x:0:0:root:/root:{shell}
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
sync:x:4:65534:sync:/bin:/bin/sync
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
backup:x:34:34:backup:/var/backups:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = """\
root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
mail:x:8:
man:x:12:
sudo:x:27:
www-data:x:33:
backup:x:34:
video:x:44:
staff:x:50:
users:x:100:
nogroup:x:65534:
"""


def accounts(root: str) -> None:
    """The system's own users and groups, as Debian numbers them."""
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    write_once(f"{root}/etc/passwd", PASSWD.format(shell=shell))
    write_once(f"{root}/etc/group", GROUP)
    write_once(f"{root}/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    write_once(f"{root}/etc/shells", "/bin/sh\n/bin/bash\n")
    write_once(f"{root}/etc/profile", "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n")


def folders(root: str) -> None:
    """The empty folders of a root file system, with the modes that Debian gives them."""
    for name in (
        "proc", "sys", "dev", "run", "etc", "home", "mnt", "media", "opt", "srv", "usr",
        "var/lib", "var/log", "var/cache", "var/mail", "var/spool",
    ):  # fmt: skip
        os.makedirs(f"{root}/{name}", exist_ok=True)
    for name, mode in (("root", 0o700), ("tmp", 0o1777), ("var/tmp", 0o1777)):
        if not os.path.isdir(f"{root}/{name}"):
            os.mkdir(f"{root}/{name}")
            os.chmod(f"{root}/{name}", mode)
    link(f"{root}/var/run", "/run")
    link(f"{root}/var/lock", "/run/lock")
    link(f"{root}/etc/mtab", "../proc/self/mounts")
