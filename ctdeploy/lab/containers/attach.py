"""Become a process of a running container: join the namespaces of its first process.

Works for every kind of container, as it needs nothing but the pid.
"""

from __future__ import annotations

import os

from ctdeploy.lab.syscalls import CLONE_NEWPID, drop_bounding_capability, setns

# What lxc's common.conf takes from every container: sys_module, sys_rawio, sys_time, mac_override, mac_admin.
DROPPED_CAPABILITIES = (16, 17, 25, 32, 33)
NAMESPACES = ("user", "pid", "uts", "ipc", "cgroup", "mnt")


class Namespaces:
    """Open handles of a container's namespaces, those that differ from ours. Raises OSError when it is gone."""

    def __init__(self, pid: int) -> None:
        self._handles: dict[str, int] = {}
        try:
            for name in NAMESPACES:
                theirs = f"/proc/{pid}/ns/{name}"
                try:
                    if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{name}"):
                        self._handles[name] = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
            # Without a mount namespace of its own this is no container: it died between the links.
            if "mnt" not in self._handles:
                raise ProcessLookupError(pid)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def enter_user(self) -> None:
        """Join the user namespace first: the way for a user of the machine who owns it without being root."""
        if "user" in self._handles:
            setns(self._handles.pop("user"))

    def enter_pids(self) -> None:
        """From now on this process's children are born in the container's pid namespace."""
        setns(self._handles["pid"], CLONE_NEWPID)

    def enter(self) -> None:
        """Join all but the pid namespace, become the container's root, and stand in its root folder."""
        for name in ("user", "uts", "ipc", "cgroup", "mnt"):
            if name in self._handles:
                setns(self._handles[name])
        become_root()
        self.close()

    def enter_mounts(self) -> None:
        """Join only the mount namespace: the host's root with the container's files."""
        setns(self._handles["mnt"])
        self.close()


def become_root() -> None:
    """Be uid 0 and gid 0 of this user namespace, without supplementary groups."""
    try:  # noqa: SIM105  (contextlib takes longer to import than `pct exec` needs)
        os.setgroups([])
    except PermissionError:
        # Refused where setgroups is denied: in the namespaces of an ordinary user.
        pass
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def drop_capabilities() -> None:
    """Take what lxc takes; before joining a user namespace this only matters for privileged containers."""
    for number in DROPPED_CAPABILITIES:
        drop_bounding_capability(number)
