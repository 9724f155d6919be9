"""Which ids of the host a container's ids are."""

from __future__ import annotations

import os

from ctdeploy.lab.layout import ID_RANGE, ID_SHIFT


def host_ids() -> int:
    """How many ids, from 0 on, this user namespace has."""
    with open("/proc/self/uid_map") as file:
        for line in file:
            inside, _, count = (int(word) for word in line.split())
            if inside == 0:
                return count
    return 1


def can_shift() -> bool:
    """True where an unprivileged container can have ids of its own, as for root of the machine."""
    return host_ids() >= ID_SHIFT + ID_RANGE


def shift_for(unprivileged: bool) -> int:
    """The host's id that is the container's root."""
    return ID_SHIFT if unprivileged and can_shift() else 0


def mapping(unprivileged: bool) -> str | None:
    """A line for uid_map and gid_map, or None when the container shares the host's user namespace.

    Where ids cannot be shifted even a privileged container gets a user namespace, over the ids that there are.
    """
    if can_shift():
        return f"0 {ID_SHIFT} {ID_RANGE}" if unprivileged else None
    return f"0 0 {min(host_ids(), ID_RANGE)}"


def own(path: str, shift: int) -> None:
    """Give a tree to a container's root. Only entries that are the host's root's: never what a container made."""
    if shift == 0:
        return
    _own_one(path, shift)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            _own_one(os.path.join(folder, name), shift)


def _own_one(path: str, shift: int) -> None:
    entry = os.lstat(path)
    if entry.st_uid == 0:
        os.chown(path, shift, shift + entry.st_gid, follow_symlinks=False)
