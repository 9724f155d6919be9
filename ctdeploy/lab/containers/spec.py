"""A container as its kind needs it to start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """One mount of a container: from the host's path to a path below the container's root."""

    source: str
    target: str
    readonly: bool = False
    optional: bool = False
    create: str = ""  # "", "file" or "dir": what to make where the target is missing


@dataclass(frozen=True)
class Spec:
    """A container as its kind needs it, read from the .conf file."""

    vmid: int
    hostname: str
    unprivileged: bool
    rootfs: str
    mounts: tuple[Mount, ...]
    init: tuple[str, ...]
