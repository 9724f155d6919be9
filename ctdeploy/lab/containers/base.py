"""What `pct` needs of a kind of container. Namespaces are the first kind; LXC has the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ctdeploy.lab.processes import Process


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


class StartFailed(Exception):
    """A container that did not come up; `lines` is what LXC would have said on the way."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class Kind(Protocol):
    """A kind of container. All pids are those of the host."""

    def init(self, vmid: int) -> Process | None:
        """The container's first process, or None when it does not run."""

    def start(self, spec: Spec) -> None:
        """Start it and return once its first process runs. Raises StartFailed."""

    def kill(self, vmid: int) -> None:
        """End it and everything in it, and return when it is gone."""

    def shut_down(self, vmid: int, timeout: float) -> bool:
        """Ask its first process to end (SIGPWR) and wait; False when it still runs then."""
